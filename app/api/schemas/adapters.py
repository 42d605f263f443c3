"""Wire forms of adapters and their versions."""

from typing import Annotated, Any, Literal

from fastapi import UploadFile
from pydantic import BaseModel, ConfigDict, Field

from app.api.schemas.common import RequestBody
from app.api.schemas.fine_tuning import Metadata
from app.contracts.merge import MergeFormat
from app.db.tables import Adapter, AdapterVersion
from app.services.model_names import ADAPTER_NAME, version_name
from app.services.stored_weights import Footprint


class AdapterUpload(BaseModel):
    """A multipart upload: PEFT's two files, for a name and a base model."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern=ADAPTER_NAME)]
    base_model: Annotated[str, Field(min_length=1, max_length=96)]
    config: UploadFile
    """`adapter_config.json`."""
    weights: UploadFile
    """`adapter_model.safetensors`."""


class ActivateBody(RequestBody):
    """Which version to serve."""

    version: Annotated[int, Field(ge=1, le=2**31 - 1)]


class RollbackBody(RequestBody):
    """Which earlier version to serve; without it, the one before the active."""

    version: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None


class MergeBody(RequestBody):
    """What the merged model is written as."""

    format: MergeFormat = "hf"
    metadata: Metadata | None = None


class VersionObject(BaseModel):
    """One immutable version."""

    id: str
    object: Literal["adapter.version"] = "adapter.version"
    adapter: str
    version: int
    model: str
    """Its `ft:` name."""
    parent_version: int | None
    job: str | None
    sha256: str
    bytes: int
    config: dict[str, Any]
    metrics: dict[str, Any]
    created_at: int

    @classmethod
    def of(cls, adapter: Adapter, version: AdapterVersion) -> "VersionObject":
        """Return the wire form of a row."""
        return cls(
            id=version.id,
            adapter=adapter.name,
            version=version.version,
            model=version_name(adapter.base_model, version.tenant_id, adapter.name, version.version),
            parent_version=version.parent_version,
            job=version.job_id,
            sha256=version.sha256,
            bytes=version.bytes,
            config=version.config,
            metrics=version.metrics,
            created_at=int(version.created_at),
        )


class VersionDetails(VersionObject):
    """A version by itself: also what it adds to the base, in parameters and bytes."""

    footprint: Footprint | None

    @classmethod
    def with_footprint(cls, adapter: Adapter, version: AdapterVersion, footprint: Footprint | None) -> "VersionDetails":
        """Return the wire form of a row and its footprint."""
        return cls(**VersionObject.of(adapter, version).model_dump(), footprint=footprint)


class AdapterObject(BaseModel):
    """A named adapter and the version it serves."""

    id: str
    object: Literal["adapter"] = "adapter"
    name: str
    base_model: str
    active_version: int | None
    latest_version: int
    created_at: int

    @classmethod
    def of(cls, adapter: Adapter) -> "AdapterObject":
        """Return the wire form of a row."""
        return cls(
            id=adapter.id,
            name=adapter.name,
            base_model=adapter.base_model,
            active_version=adapter.active_version,
            latest_version=adapter.latest_version,
            created_at=int(adapter.created_at),
        )


class AdapterDetails(AdapterObject):
    """An adapter by itself: also what its active version adds to the base, in parameters and bytes."""

    footprint: Footprint | None

    @classmethod
    def with_footprint(cls, adapter: Adapter, footprint: Footprint | None) -> "AdapterDetails":
        """Return the wire form of a row and its footprint."""
        return cls(**AdapterObject.of(adapter).model_dump(), footprint=footprint)
