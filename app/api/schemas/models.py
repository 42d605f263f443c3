"""Wire form of models: OpenAI's four fields, and where an adapter stands."""

from typing import Literal

from pydantic import BaseModel

from app.services.model_names import ResolvedModel


class ModelObject(BaseModel):
    """A name that can be given as `model`."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    root: str
    """The base model."""
    parent: str | None
    context_length: int
    adapter: str | None
    version: int | None

    @classmethod
    def of(cls, model: ResolvedModel, name: str) -> "ModelObject":
        """Return the wire form of a resolved model under the name it was asked by."""
        held = model.version or model.checkpoint
        return cls(
            id=name,
            created=int(model.created_at),
            owned_by=held.tenant_id if held else "graft",
            root=model.info.id,
            parent=model.info.id if held else None,
            context_length=model.info.context_length,
            adapter=model.adapter.name if model.adapter else None,
            version=model.version.version if model.version else None,
        )
