"""Files of a tenant. Training files are checked line by line before a byte is stored, and previewed as tokens."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from sqlalchemy.orm import Session

from app.contracts.base_models import BaseModelInfo
from app.core.errors import InvalidRequestError, TooLargeError, not_found
from app.db.blobs import iter_lines, write_blob
from app.db.repositories import files
from app.db.repositories.paging import Order
from app.db.tables import File
from app.text.chat_template import ChatTemplateError
from app.text.examples import MAX_LINE_BYTES, LineError, parse_example, validate_lines
from app.text.tokenize import TokenizedExample, tokenize_example
from app.text.tokenizer import tokenizer_for

PURPOSE = "fine-tune"
MAX_PREVIEW_TOKENS = 4096


@dataclass(frozen=True)
class PreviewedExample:
    """One example as the trainer sees it; `total_tokens` counts what a long preview left out."""

    line: int
    tokens: list[str]
    example: TokenizedExample
    total_tokens: int


def check_upload(source: BinaryIO, *, filename: str, purpose: str, max_bytes: int) -> int:
    """Return the number of examples of an upload. Raises InvalidRequestError or TooLargeError; stores nothing."""
    if purpose != PURPOSE:
        raise InvalidRequestError(
            f"purpose: expected '{PURPOSE}', got {purpose!r}", code="invalid_purpose", param="purpose"
        )
    size = source.seek(0, 2)
    if size > max_bytes:
        raise TooLargeError(
            f"file: {size} bytes, but at most {max_bytes} are accepted", code="file_too_large", param="file"
        )
    count, errors = validate_lines(_bounded_lines(source))
    if errors:
        raise InvalidRequestError(
            f"{filename}: " + "; ".join(str(error) for error in errors),
            code="invalid_training_data",
            param=_param(errors[0]),
        )
    if count == 0:
        raise InvalidRequestError(f"{filename}: the file holds no example", code="empty_file", param="file")
    return count


def store_upload(session: Session, tenant_id: str, source: BinaryIO, *, filename: str, examples: int) -> File:
    """Store an upload that passed `check_upload`."""
    blob = write_blob(session, tenant_id, source)
    return files.create(session, tenant_id, blob=blob, filename=filename, purpose=PURPOSE, examples=examples)


def safe_filename(name: str | None) -> str:
    """Return a client's file name without its path and control characters: it is shown, never opened."""
    last = re.split(r"[/\\]", name or "")[-1]
    return re.sub(r"[\x00-\x1f\x7f\ud800-\udfff]", "", last)[:255] or "upload.jsonl"


def get_file(session: Session, tenant_id: str, file_id: str, *, param: str | None = None, hold: bool = False) -> File:
    """Return a file; with `hold`, one that stays until this write transaction ends. Raises NotFoundError."""
    file = files.get(session, tenant_id, file_id, hold=hold)
    if file is None:
        raise not_found("file", file_id, param=param)
    return file


def get_training_file(session: Session, tenant_id: str, file_id: str, *, param: str | None = None) -> File:
    """Return a file of training examples. Raises NotFoundError, or InvalidRequestError for a file of another kind."""
    file = get_file(session, tenant_id, file_id, param=param)
    if file.purpose != PURPOSE:
        raise InvalidRequestError(
            f"{param or 'file'}: {file_id} has purpose {file.purpose!r}, but '{PURPOSE}' is expected",
            code="invalid_purpose",
            param=param,
        )
    return file


def list_files(
    session: Session, tenant_id: str, *, purpose: str | None, after: str | None, limit: int, order: Order
) -> tuple[Sequence[File], bool]:
    """Return a page of files and whether more follow."""
    return files.list(session, tenant_id, purpose=purpose, after=after, limit=limit, order=order)


def delete_file(session: Session, tenant_id: str, file_id: str) -> None:
    """Delete a file; jobs that use it keep its bytes. Raises NotFoundError."""
    if not files.delete(session, tenant_id, file_id):
        raise not_found("file", file_id)


def preview_file(
    session: Session, tenant_id: str, file_id: str, info: BaseModelInfo, examples: int
) -> list[PreviewedExample]:
    """Return the first examples with tokens and loss mask, made by the code that training uses."""
    file = get_training_file(session, tenant_id, file_id)
    previewed: list[PreviewedExample] = []
    for number, line in enumerate(iter_lines(session, tenant_id, file.blob_id), start=1):
        if len(previewed) == examples:
            break
        if line.strip():
            previewed.append(_preview_line(info, number, line))
    return previewed


def _preview_line(info: BaseModelInfo, number: int, line: bytes) -> PreviewedExample:
    try:
        whole = tokenize_example(info, parse_example(line))
    except ChatTemplateError as error:
        raise InvalidRequestError(f"line {number}: {error}", code="chat_template_error", param="model") from error
    shown = TokenizedExample(whole.token_ids[:MAX_PREVIEW_TOKENS], whole.loss_mask[:MAX_PREVIEW_TOKENS])
    tokenizer = tokenizer_for(info)
    return PreviewedExample(number, [tokenizer.token(i) for i in shown.token_ids], shown, len(whole.token_ids))


def _bounded_lines(source: BinaryIO) -> Iterator[bytes]:
    """Yield lines, of an overlong one just enough to be refused, so that no line is held whole."""
    source.seek(0)
    while line := source.readline(MAX_LINE_BYTES + 2):
        rest = line
        while not rest.endswith(b"\n") and (rest := source.readline(MAX_LINE_BYTES)):
            pass
        yield line


def _param(error: LineError) -> str:
    return f"line {error.line}.{error.field}" if error.field else f"line {error.line}"
