"""Slots go to the versions in use; nobody is served by another's weights."""

import pytest

from app.contracts.adapters import AdapterRef
from workers.inference.adapter_cache import BASE_ONLY, AdapterCache, AdapterUnavailableError


def ref(version: str, tenant: str = "tnt-a", adapter: str = "adp-1") -> AdapterRef:
    """A version known by its name."""
    return AdapterRef(tenant_id=tenant, adapter_id=adapter, version_id=version, weights_id=f"blob-{version}", config={})


class Slots:
    """What was loaded where; versions named `bad…` refuse to load."""

    def __init__(self) -> None:
        self.loads: list[tuple[str, str, int]] = []

    def load(self, adapter: AdapterRef, slot: int) -> None:
        """Remember a load."""
        if adapter.version_id.startswith("bad"):
            raise AdapterUnavailableError(404, "adapter_gone", "no such version")
        self.loads.append((adapter.tenant_id, adapter.version_id, slot))


def test_the_base_alone_takes_no_slot() -> None:
    cache = AdapterCache([], Slots().load)
    assert cache.acquire(None) == BASE_ONLY
    cache.release(None)


def test_a_version_is_loaded_once_and_the_least_recently_used_one_makes_room() -> None:
    slots = Slots()
    cache = AdapterCache([0, 1], slots.load)
    for version in ("v1", "v2", "v1"):
        cache.acquire(ref(version))
        cache.release(ref(version))
    assert slots.loads == [("tnt-a", "v1", 0), ("tnt-a", "v2", 1)]
    assert cache.acquire(ref("v3")) == 1
    assert cache.acquire(ref("v1")) == 0
    assert slots.loads[2:] == [("tnt-a", "v3", 1)]


def test_pinned_versions_stay_until_their_last_release() -> None:
    cache = AdapterCache([0], Slots().load)
    assert cache.acquire(ref("v1")) == 0
    assert cache.acquire(ref("v1")) == 0
    cache.release(ref("v1"))
    assert cache.acquire(ref("v2")) is None
    cache.release(ref("v1"))
    assert cache.acquire(ref("v2")) == 0


def test_the_same_version_id_of_another_tenant_is_another_entry() -> None:
    slots = Slots()
    cache = AdapterCache([0, 1], slots.load)
    assert cache.acquire(ref("v1", "tnt-a")) != cache.acquire(ref("v1", "tnt-b"))
    assert [load[0] for load in slots.loads] == ["tnt-a", "tnt-b"]


def test_the_same_version_id_of_another_adapter_is_another_entry() -> None:
    cache = AdapterCache([0, 1], Slots().load)
    assert cache.acquire(ref("v1", adapter="adp-1")) != cache.acquire(ref("v1", adapter="adp-2"))


def test_a_version_that_cannot_load_frees_its_slot_and_forgets_who_was_there() -> None:
    slots = Slots()
    cache = AdapterCache([0], slots.load)
    cache.acquire(ref("v1"))
    cache.release(ref("v1"))
    with pytest.raises(AdapterUnavailableError, match="no such version"):
        cache.acquire(ref("bad"))
    assert cache.acquire(ref("v1")) == 0
    assert slots.loads == [("tnt-a", "v1", 0), ("tnt-a", "v1", 0)]
