"""Adapter metadata shared by service and workers; the tensors themselves travel as safetensors bytes."""

from app.contracts.base import Contract

VersionKey = tuple[str, str, str]
"""Tenant, adapter and version: what caches of weights key on."""


class AdapterRef(Contract):
    """Pins one immutable set of adapter weights for one tenant. `None` where the base alone is meant.

    `weights_id` names the blob. For a checkpoint `version_id` is its id and `adapter_id` the id of its job, for the
    adapter may not exist yet.
    """

    tenant_id: str
    adapter_id: str
    version_id: str
    weights_id: str
    config: dict[str, object]
    """PEFT `adapter_config.json` as an object."""

    @property
    def key(self) -> VersionKey:
        """Whose weights these are: tenant, adapter and version."""
        return self.tenant_id, self.adapter_id, self.version_id
