"""What token ids a base model can take: those of its vocabulary, and as many as its context is long."""

from app.contracts.base_models import BaseModelInfo
from app.core.errors import InvalidRequestError


def known(info: BaseModelInfo, token_ids: list[int], *, param: str) -> list[int]:
    """Return `token_ids`. Raises InvalidRequestError where one is outside the vocabulary."""
    for position, token_id in enumerate(token_ids):
        if not 0 <= token_id < info.vocab_size:
            raise InvalidRequestError(
                f"{param}[{position}]: expected a token id of 0 to {info.vocab_size - 1}, got {token_id}",
                code="invalid_value",
                param=param,
            )
    return token_ids


def within_context(info: BaseModelInfo, token_ids: list[int], *, param: str, where: str) -> list[int]:
    """Return `token_ids`. Raises InvalidRequestError when they are more than the context takes; `where` is shown."""
    if len(token_ids) > info.context_length:
        raise InvalidRequestError(
            f"{where}: {len(token_ids)} tokens exceed the context of {info.id}, {info.context_length} tokens",
            code="context_length_exceeded",
            param=param,
        )
    return token_ids
