"""What stored weights say of themselves: read from the header of their safetensors file, never from the tensors."""

import io
from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.db.blobs import iter_blob
from app.db.repositories import adapters, base_models
from app.db.tables import Adapter, AdapterVersion
from app.services.safetensors_file import MAX_HEADER_BYTES, count_scalars, read_header


@dataclass(frozen=True)
class Footprint:
    """How much an adapter's active version adds to its base."""

    trainable_parameters: int
    adapter_bytes: int
    base_parameters: int


def footprint(session: Session, adapter: Adapter) -> Footprint | None:
    """Return the footprint of the version that is served, or None while there is none."""
    number, base = adapter.active_version, base_models.get(session, adapter.base_model)
    version = number and adapters.get_version(session, adapter.tenant_id, adapter.id, number)
    if not version or base is None:
        return None
    parameters = count_scalars(stored_header(session, version))
    return Footprint(parameters, version.bytes, base_models.info_of(base).parameters)


def stored_header(session: Session, version: AdapterVersion) -> dict[str, object]:
    """Return the header of a version's weights; no more of them is read than a header may take."""
    start = io.BytesIO()
    for chunk in iter_blob(session, version.tenant_id, version.weights_id):
        start.write(chunk)
        if start.tell() >= 8 + MAX_HEADER_BYTES:
            break
    start.seek(0)
    return read_header(start)
