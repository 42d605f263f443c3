"""Where a job starts: a bare base, or a version whose LoRA shape it keeps; and the adapter it feeds."""

import re
import secrets
from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.contracts.adapter_format import read_graft, targets_of, trainable_scalars
from app.contracts.base_models import BaseModelInfo
from app.core.errors import ConflictError, InvalidRequestError
from app.db.repositories import adapters, base_models
from app.db.tables import AdapterVersion
from app.services.model_names import ADAPTER_NAME, ResolvedModel, resolve_model
from app.services.safetensors_file import tensor_shapes
from app.services.stored_weights import stored_header
from app.services.trained_part import MAX_RANK, ParentShape


@dataclass(frozen=True)
class StartPoint:
    """The base, the adapter that will get the new version, and the version to continue from, if any."""

    info: BaseModelInfo
    adapter_name: str
    adapter_id: str | None = None
    version: AdapterVersion | None = None
    shape: ParentShape | None = None


def resolve_start(session: Session, tenant_id: str, model: str, adapter: str | None, suffix: str | None) -> StartPoint:
    """Return where a job on `model` starts. Raises NotFoundError, InvalidRequestError or ConflictError.

    Without `adapter`, a job on an adapter adds a version to it; one on a base makes an adapter named after `suffix`.
    """
    source = resolve_model(session, tenant_id, model)
    if source.checkpoint:
        raise InvalidRequestError(
            "model: a job starts from a base model or a version, not from a checkpoint",
            code="invalid_model",
            param="model",
        )
    if adapter is None:
        name = source.adapter.name if source.adapter else _generated_name(suffix)
        return _from_version(session, source, name)
    if base_models.get(session, adapter):
        raise InvalidRequestError(
            f"adapter: {adapter!r} is the name of a base model", code="invalid_value", param="adapter"
        )
    held = adapters.get_by_name(session, tenant_id, adapter)
    if held is None or (source.adapter and source.adapter.id == held.id):
        return _from_version(session, source, adapter)
    if source.adapter:
        raise ConflictError(
            f"adapter: {adapter!r} exists already; give it as model to continue from it, or choose a new name",
            code="adapter_exists",
            param="adapter",
        )
    if held.base_model != source.info.id:
        raise InvalidRequestError(
            f"adapter: {adapter!r} stands on {held.base_model}, not on {source.info.id}",
            code="base_model_mismatch",
            param="adapter",
        )
    return _from_version(session, resolve_model(session, tenant_id, adapter), adapter)


def _from_version(session: Session, source: ResolvedModel, adapter_name: str) -> StartPoint:
    if source.adapter is None or source.version is None:
        return StartPoint(source.info, adapter_name)
    same = source.adapter.id if source.adapter.name == adapter_name else None
    shape = _shape(session, source.name, source.version, source.info)
    return StartPoint(source.info, adapter_name, same, source.version, shape)


def _generated_name(suffix: str | None) -> str:
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", suffix or "").strip("-._")[:50] or "adapter"
    name = f"{stem}-{secrets.token_hex(4)}"
    assert re.fullmatch(ADAPTER_NAME, name)
    return name


def _shape(session: Session, name: str, version: AdapterVersion, info: BaseModelInfo) -> ParentShape:
    """Read mode, rank and alpha from the configuration, targets and size from the weights' own header."""
    shapes = tensor_shapes(stored_header(session, version))
    graft = read_graft(version.config)
    mode = graft.mode if graft else "lora"
    rank, alpha = version.config.get("r"), version.config.get("lora_alpha")
    if mode != "lora":
        rank, alpha = 1, 1.0
    if not isinstance(rank, int) or not 1 <= rank <= MAX_RANK or not isinstance(alpha, int | float):
        raise InvalidRequestError(
            f"model: {name} has LoRA rank {rank!r}; training continues up to rank {MAX_RANK}",
            code="invalid_model",
            param="model",
        )
    return ParentShape(
        name=name,
        rank=rank,
        alpha=float(alpha),
        targets=targets_of(shapes, info) if mode == "lora" else [],
        parameters=trainable_scalars(shapes, info),
        mode=mode,
    )
