"""OpenAI's four forms of text for a model: a string, token ids, or a list of either."""

from typing import Any, cast

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError


def one_or_several(most: int) -> BeforeValidator:
    """Return a validator that makes any of the forms a list of up to `most` strings or of token id lists."""

    def as_list(given: Any) -> list[str] | list[list[int]]:
        if isinstance(given, str):
            return [given]
        if isinstance(given, list) and given and _is_tokens(given):
            return [given]
        if isinstance(given, list) and 0 < len(given) <= most:
            if all(isinstance(item, str) for item in given):
                return cast(list[str], given)
            if all(isinstance(item, list) and _is_tokens(item) for item in given):
                return cast(list[list[int]], given)
        raise PydanticCustomError(
            "text_or_tokens",
            "expected a string, token ids, or a list of up to {most} strings or of up to {most} lists of token ids",
            {"most": most},
        )

    return BeforeValidator(as_list)


def _is_tokens(items: list[Any]) -> bool:
    return all(isinstance(item, int) and not isinstance(item, bool) for item in items)
