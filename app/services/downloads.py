"""Stored bytes on their way out: verified and spooled first, so that a damaged blob is an error and not half a file."""

import json
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, cast

from sqlalchemy.orm import Session

from app.core.errors import ServiceError, not_found
from app.db.blobs import BlobCorruptError, iter_blob
from app.db.tables import AdapterVersion

CHUNK_BYTES = 1024 * 1024
SPOOL_BYTES = 8 * CHUNK_BYTES
CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"


@dataclass(frozen=True)
class Download:
    """A verified copy, ready to be sent once."""

    content: BinaryIO
    size: int

    def chunks(self) -> Iterator[bytes]:
        """Yield the content and let go of it."""
        with self.content:
            while chunk := self.content.read(CHUNK_BYTES):
                yield chunk


def download_blob(session: Session, tenant_id: str, blob_id: str) -> Download:
    """Return a blob's content. Raises ServiceError when it no longer is what was stored."""
    spool = _spool()
    _copy(session, tenant_id, blob_id, spool)
    return _ready(spool)


def download_version(session: Session, version: AdapterVersion, file: str | None) -> Download:
    """Return a version as a zip that PEFT loads, or one of its two files. Raises NotFoundError for another name."""
    config = json.dumps(version.config, indent=2, sort_keys=True).encode()
    if file == WEIGHTS_FILE:
        return download_blob(session, version.tenant_id, version.weights_id)
    spool = _spool()
    if file == CONFIG_FILE:
        spool.write(config)
    elif file is None:
        with zipfile.ZipFile(spool, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(_entry(CONFIG_FILE), config)
            with archive.open(_entry(WEIGHTS_FILE), "w", force_zip64=True) as weights:
                _copy(session, version.tenant_id, version.weights_id, cast(BinaryIO, weights))
    else:
        raise not_found("file", file, param="file")
    return _ready(spool)


def _entry(name: str) -> zipfile.ZipInfo:
    # A fixed time keeps the archive's bytes the same at every download.
    return zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))


def _copy(session: Session, tenant_id: str, blob_id: str, target: BinaryIO) -> None:
    try:
        for chunk in iter_blob(session, tenant_id, blob_id):
            target.write(chunk)
    except BlobCorruptError as error:
        raise ServiceError("The stored content is damaged and is not handed out", code="content_damaged") from error


def _spool() -> BinaryIO:
    return cast(BinaryIO, tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES))


def _ready(spool: BinaryIO) -> Download:
    size = spool.tell()
    spool.seek(0)
    return Download(spool, size)
