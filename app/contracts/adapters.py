"""Adapter metadata shared by service and workers; the tensors themselves travel as safetensors bytes."""

from app.contracts.base import Contract


class AdapterRef(Contract):
    """Pins one immutable set of adapter weights for one tenant. `None` where the base alone is meant.

    `weights_id` names the blob; `version_id` is a version's or a checkpoint's id and is what caches key on,
    together with the tenant.
    """

    tenant_id: str
    version_id: str
    weights_id: str
    config: dict[str, object]
    """PEFT `adapter_config.json` as an object."""
