"""Training data: JSONL lines of `messages`, `prompt`/`completion` or `text`, checked field by field."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError, model_validator

MAX_REPORTED_ERRORS = 20
MAX_LINE_BYTES = 16 * 1024 * 1024

Text = Annotated[str, StringConstraints(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ChatMessage(_Strict):
    """One turn. `weight` 0 keeps an assistant turn in the context without learning from it."""

    role: Literal["system", "user", "assistant"]
    content: Text
    weight: Literal[0, 1] | None = None

    @model_validator(mode="after")
    def _weight_only_on_assistant(self) -> "ChatMessage":
        if self.weight is not None and self.role != "assistant":
            raise ValueError("weight is allowed on assistant turns only")
        return self


class ChatExample(_Strict):
    """A conversation; the loss is on assistant turns only."""

    messages: list[ChatMessage] = Field(min_length=1)

    @model_validator(mode="after")
    def _has_something_to_learn(self) -> "ChatExample":
        if self.messages[0].role == "assistant":
            raise ValueError("the first turn must be a system or user turn, for the assistant to answer")
        turns = [m for m in self.messages if m.role == "assistant"]
        if not turns:
            raise ValueError("expected at least one assistant turn")
        if all(m.weight == 0 for m in turns):
            raise ValueError("every assistant turn has weight 0, so nothing would be learnt")
        return self


class CompletionExample(_Strict):
    """A prompt and what should follow; the loss is on the completion."""

    prompt: str
    completion: Text


class TextExample(_Strict):
    """Running text; the loss is on every token but the first."""

    text: Text


Example = ChatExample | CompletionExample | TextExample
_FORMS: dict[str, type[ChatExample] | type[CompletionExample] | type[TextExample]] = {
    "messages": ChatExample,
    "prompt": CompletionExample,
    "completion": CompletionExample,
    "text": TextExample,
}


@dataclass(frozen=True)
class LineError:
    """What is wrong with one field of one line (lines count from 1)."""

    line: int
    field: str
    message: str

    def __str__(self) -> str:
        return f"line {self.line}, {self.field}: {self.message}" if self.field else f"line {self.line}: {self.message}"


class ExampleError(ValueError):
    """A line that is no training example: `(field, message)` pairs."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{field}: {message}" if field else message for field, message in problems))
        self.problems = problems


def _field_path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def parse_example(line: bytes | str) -> Example:
    """Return the example on one JSONL line. Raises ExampleError with the field and what was expected."""
    if len(line) > MAX_LINE_BYTES:
        raise ExampleError([("", f"longer than {MAX_LINE_BYTES} bytes")])
    try:
        value: Any = json.loads(line, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise ExampleError([("", f"not UTF-8 at byte {error.start}")]) from error
    except json.JSONDecodeError as error:
        raise ExampleError([("", f"not JSON: {error.msg} at column {error.colno}")]) from error
    except (ValueError, RecursionError) as error:
        raise ExampleError([("", f"not JSON: {error}")]) from error
    if not isinstance(value, dict):
        raise ExampleError([("", f"expected a JSON object, got {type(value).__name__}")])
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ExampleError([("", "contains a lone surrogate, which is not text")]) from error
    form = next((_FORMS[key] for key in _FORMS if key in value), None)
    if form is None:
        raise ExampleError([("", "expected a field messages, text, or prompt and completion")])
    try:
        example: Example = TypeAdapter(form).validate_python(value)
    except ValidationError as error:
        raise ExampleError(
            [(_field_path(e["loc"]), e["msg"].removeprefix("Value error, ")) for e in error.errors()]
        ) from error
    return example


def validate_lines(lines: Iterable[bytes]) -> tuple[int, list[LineError]]:
    """Check every line; blank lines are passed over. Return the number of examples and at most 20 errors."""
    count, errors = 0, []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        count += 1
        try:
            parse_example(line)
        except ExampleError as error:
            errors += [LineError(number, field, message) for field, message in error.problems]
            if len(errors) >= MAX_REPORTED_ERRORS:
                return count, errors[:MAX_REPORTED_ERRORS]
    return count, errors


def read_examples(lines: Iterable[bytes]) -> Iterator[Example]:
    """Yield the examples of a validated file."""
    for line in lines:
        if line.strip():
            yield parse_example(line)
