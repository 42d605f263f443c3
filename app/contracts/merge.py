"""A merge job: a version folded into its base, as one file that other programs load."""

from typing import Literal

from pydantic import Field

from app.contracts.base import Contract

MergeFormat = Literal["hf", "gguf"]


class MergeConfig(Contract):
    """`hf` is a .tar of a Hugging Face directory, `gguf` one .gguf file; neither may grow beyond `max_bytes`."""

    format: MergeFormat
    version: int = Field(ge=1)
    max_bytes: int = Field(ge=1)


class MergeResult(Contract):
    """What came of it: a file of the tenant."""

    file: str
    filename: str
    bytes: int
    sha256: str
