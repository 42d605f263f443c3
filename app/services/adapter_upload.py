"""Adapters that a tenant brings: every tensor must fit the base model before anything is stored."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import BinaryIO, NoReturn

from sqlalchemy.orm import Session

from app.contracts.adapter_format import AdapterFormatError, plan_adapter
from app.core.errors import ConflictError, InvalidRequestError, TooLargeError
from app.db.repositories import adapters, base_models
from app.db.repositories.adapters import AdapterConflictError
from app.db.tables import AdapterVersion
from app.services.model_names import hosted_base
from app.services.safetensors_file import check_safetensors, refuse_weights, transposes

MAX_CONFIG_BYTES = 256 * 1024


@dataclass(frozen=True)
class CheckedAdapter:
    """An upload that may be stored; `weights` stays on disk until the caller is done."""

    name: str
    base_model: str
    config: Mapping[str, object]
    weights: Path


@contextmanager
def on_disk(source: BinaryIO, *, max_bytes: int) -> Iterator[Path]:
    """Yield a path to a copy of the upload, so that it can be checked without being held in memory."""
    size = source.seek(0, 2)
    if size > max_bytes:
        raise TooLargeError(
            f"weights: {size} bytes, but at most {max_bytes} are accepted", code="file_too_large", param="weights"
        )
    source.seek(0)
    with NamedTemporaryFile(suffix=".safetensors") as copy:
        shutil.copyfileobj(source, copy)
        copy.flush()
        yield Path(copy.name)


def check_adapter(session: Session, *, name: str, base_model: str, config: bytes, weights: Path) -> CheckedAdapter:
    """Return the upload as one that fits its base model. Raises ServiceError naming the tensor or field at fault."""
    if base_models.get(session, name):
        raise InvalidRequestError(f"name: {name!r} is the name of a base model", code="invalid_value", param="name")
    info = hosted_base(session, base_model, param="base_model")
    parsed = _parse_config(config)
    shapes = check_safetensors(weights)
    try:
        plan = plan_adapter(parsed, shapes, info)
    except AdapterFormatError as error:
        param = "weights" if error.tensor in shapes else "config"
        raise InvalidRequestError(f"{param}: {error.message}", code="invalid_adapter", param=param) from error
    for twin, other in plan.twins.items():
        if not transposes(weights, twin, other):
            raise refuse_weights(f"tensor {twin!r} is not the transpose of {other!r}, with which it is tied")
    return CheckedAdapter(name, base_model, parsed, weights)


def store_adapter(session: Session, tenant_id: str, checked: CheckedAdapter) -> AdapterVersion:
    """Store an upload as the adapter's next version and serve it. Raises ConflictError."""
    try:
        with checked.weights.open("rb") as weights:
            return adapters.add_uploaded_version(
                session,
                tenant_id,
                name=checked.name,
                base_model=checked.base_model,
                weights=weights,
                config=checked.config,
                metrics={},
            )
    except AdapterConflictError as error:
        raise ConflictError(f"name: {error}", code="base_model_mismatch", param="name") from error


def _parse_config(config: bytes) -> dict[str, object]:
    if len(config) > MAX_CONFIG_BYTES:
        raise TooLargeError(
            f"config: more than {MAX_CONFIG_BYTES} bytes for adapter_config.json", code="file_too_large", param="config"
        )

    def refuse_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    try:
        parsed = json.loads(config, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"config: not JSON: {error}", code="invalid_adapter", param="config") from error
    if not isinstance(parsed, dict):
        raise InvalidRequestError("config: expected a JSON object", code="invalid_adapter", param="config")
    return parsed
