"""What all bodies share: strict requests, OpenAI's pages, fields accepted only at their neutral value."""

from collections.abc import Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

T = TypeVar("T")


class RequestBody(BaseModel):
    """A JSON body: unknown fields, numbers in strings and non-finite numbers are refused by name."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _unicode(text: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("contains a lone surrogate, which is not text")
    return text


Text = Annotated[str, AfterValidator(_unicode)]


class Page(BaseModel, Generic[T]):
    """One page of a list; the client sends the last id as `after` while `has_more`."""

    object: Literal["list"] = "list"
    data: Sequence[T]
    has_more: bool
    first_id: str | None = None
    last_id: str | None = None


class Deleted(BaseModel):
    """What was deleted."""

    id: str
    object: str
    deleted: Literal[True] = True


def only(*neutral: object) -> AfterValidator:
    """Return a validator for an OpenAI field that is accepted at a value that changes nothing, and else refused."""

    def check(value: Any) -> Any:
        if value is None or value in neutral:
            return value
        raise PydanticCustomError("unsupported_parameter", "is not supported")

    return AfterValidator(check)


def page(rows: Sequence[T], ids: Sequence[str], has_more: bool) -> Page[T]:
    """Return a page of shaped rows."""
    return Page(data=rows, has_more=has_more, first_id=ids[0] if ids else None, last_id=ids[-1] if ids else None)
