"""Whether there is something to learn in a job's data: at least 2 tokens, and at least one that counts in the loss."""

import json
from collections.abc import Iterable, Sequence

from app.contracts.base_models import BaseModelInfo
from app.core.errors import InvalidRequestError
from app.text.chat_template import ChatTemplateError
from app.text.examples import Example, ExampleError, parse_example
from app.text.tokenize import TokenizedExample, tokenize_example

LINES_CHECKED = 100
"""Of a file that is fine, so many lines are tokenised when a job is created; the worker meets the rest."""


def check_trainable(info: BaseModelInfo, lines: Iterable[bytes], *, param: str) -> None:
    """Raise InvalidRequestError unless some line has a token that the loss counts."""
    trainable = False
    for number, line in enumerate(lines, start=1):
        if trainable and number > LINES_CHECKED:
            break
        if not line.strip():
            continue
        example = tokenize(info, parse_example(line), param=param, where=f"line {number}")
        trainable = trainable or any(example.loss_mask)
    if not trainable:
        raise InvalidRequestError(
            f"{param}: expected an example of at least 2 tokens with at least one that the loss counts",
            code="nothing_to_learn",
            param=param,
        )


def one_example(text: str | None, messages: Sequence[object] | None) -> tuple[Example, bytes]:
    """Return the example made of `text` or `messages`, and its JSONL line. Raises InvalidRequestError."""
    if (text is None) == (messages is None):
        raise InvalidRequestError("text: give either text or messages", code="invalid_value", param="text")
    value = {"text": text} if messages is None else {"messages": list(messages)}
    try:
        line = json.dumps(value, ensure_ascii=False).encode()
        return parse_example(line), line
    except UnicodeEncodeError as error:
        param = "text" if messages is None else "messages"
        raise InvalidRequestError(f"{param}: holds a lone surrogate", code="invalid_value", param=param) from error
    except ExampleError as error:
        field, message = error.problems[0]
        param = field or ("text" if messages is None else "messages")
        raise InvalidRequestError(f"{param}: {message}", code="invalid_value", param=param) from error


def tokenize(info: BaseModelInfo, example: Example, *, param: str, where: str = "") -> TokenizedExample:
    """Return the example as tokens. Raises InvalidRequestError when the chat template refuses it."""
    try:
        return tokenize_example(info, example)
    except ChatTemplateError as error:
        at = f"{param}: {where}: " if where else f"{param}: "
        raise InvalidRequestError(f"{at}{error}", code="chat_template_error", param=param) from error


def at_least_two_tokens(example: TokenizedExample, *, param: str) -> TokenizedExample:
    """Return the example if it can be learnt from or scored. Raises InvalidRequestError."""
    if len(example.token_ids) < 2 or not any(example.loss_mask):
        raise InvalidRequestError(
            f"{param}: expected at least 2 tokens, got {len(example.token_ids)}", code="text_too_short", param=param
        )
    return example
