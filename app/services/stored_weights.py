"""What stored weights say of themselves: read from the header of their safetensors file, never from the tensors."""

import io
from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.contracts.adapter_format import trainable_scalars
from app.contracts.base_models import BaseModelInfo
from app.db.blobs import iter_blob
from app.db.repositories import adapters, base_models
from app.db.tables import Adapter, AdapterVersion
from app.services.safetensors_file import MAX_HEADER_BYTES, read_header, tensor_shapes


@dataclass(frozen=True)
class Footprint:
    """How much a version adds to its base. `ratio` is of bytes, what is stored by what the base takes in memory."""

    trainable_parameters: int
    adapter_bytes: int
    base_parameters: int
    base_bytes: int
    ratio: float | None


def footprint(session: Session, adapter: Adapter) -> Footprint | None:
    """Return the footprint of the version that is served, or None while there is none."""
    number = adapter.active_version
    version = number and adapters.get_version(session, adapter.tenant_id, adapter.id, number)
    return footprint_of(session, adapter, version) if version else None


def footprint_of(session: Session, adapter: Adapter, version: AdapterVersion) -> Footprint | None:
    """Return the footprint of a version, or None where no worker has ever registered its base."""
    base = base_models.get(session, adapter.base_model)
    return None if base is None else _measure(session, version, base_models.info_of(base))


def stored_header(session: Session, version: AdapterVersion) -> dict[str, object]:
    """Return the header of a version's weights; no more of them is read than a header may take."""
    start = io.BytesIO()
    for chunk in iter_blob(session, version.tenant_id, version.weights_id):
        start.write(chunk)
        if start.tell() >= 8 + MAX_HEADER_BYTES:
            break
    start.seek(0)
    return read_header(start)


def _measure(session: Session, version: AdapterVersion, info: BaseModelInfo) -> Footprint:
    return Footprint(
        trainable_parameters=trainable_scalars(tensor_shapes(stored_header(session, version)), info),
        adapter_bytes=version.bytes,
        base_parameters=info.parameters,
        base_bytes=info.bytes,
        ratio=version.bytes / info.bytes if info.bytes else None,
    )
