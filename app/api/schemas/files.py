"""Wire forms of files: OpenAI's file object, and ours for a preview."""

from typing import Literal

from pydantic import BaseModel

from app.db.tables import File
from app.services.files import PreviewedExample


class FileObject(BaseModel):
    """An uploaded file. It was validated before it was stored, so its status is always `processed`."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    examples: int

    @classmethod
    def of(cls, file: File) -> "FileObject":
        """Return the wire form of a row."""
        return cls(
            id=file.id,
            bytes=file.bytes,
            created_at=int(file.created_at),
            filename=file.filename,
            purpose=file.purpose,
            examples=file.examples,
        )


class PreviewLine(BaseModel):
    """An example as the trainer sees it: `loss_mask` 1 marks the tokens that are learnt."""

    line: int
    tokens: list[str]
    token_ids: list[int]
    loss_mask: list[int]
    total_tokens: int

    @classmethod
    def of(cls, previewed: PreviewedExample) -> "PreviewLine":
        """Return the wire form of a previewed example."""
        return cls(
            line=previewed.line,
            tokens=previewed.tokens,
            token_ids=previewed.example.token_ids,
            loss_mask=previewed.example.loss_mask,
            total_tokens=previewed.total_tokens,
        )


class FilePreview(BaseModel):
    """The first examples of a file under one model's tokenizer and chat template."""

    object: Literal["file.preview"] = "file.preview"
    file: str
    model: str
    data: list[PreviewLine]
