"""Slots go to the versions in use; nobody is served by another's weights."""

from collections.abc import Mapping

import pytest
import torch

from app.contracts.adapters import AdapterRef
from workers.inference.adapter_cache import (
    BASE_ONLY,
    AdapterCache,
    AdapterUnavailableError,
    NoRoomError,
    SourceCounts,
)
from workers.lora.adapter import AdapterWeights


def ref(version: str, tenant: str = "tnt-a", adapter: str = "adp-1") -> AdapterRef:
    """A version known by its name."""
    return AdapterRef(tenant_id=tenant, adapter_id=adapter, version_id=version, weights_id=f"blob-{version}", config={})


class Device:
    """Source and slots in one: which version is in which slot, and how often each was asked for.

    Versions named `bad…` are refused by the source, `odd…` by the slots; those in `coming` are on their way.
    """

    def __init__(self, sizes: Mapping[str, int] | None = None) -> None:
        self.sizes = sizes or {}
        self.coming: set[str] = set()
        self.slots: dict[int, AdapterRef] = {}
        self.asked: list[str] = []
        self.prefetched: list[str] = []
        self._made: dict[int, tuple[AdapterWeights, AdapterRef]] = {}

    def get(self, adapter: AdapterRef) -> AdapterWeights | None:
        """Return weights that remember whose they are."""
        self.asked.append(adapter.version_id)
        if adapter.version_id.startswith("bad"):
            raise AdapterUnavailableError(404, "adapter_gone", "no such version")
        if adapter.version_id in self.coming:
            return None
        weights = AdapterWeights({}, {}, alpha=1, rank=1, targets=[])
        self._made[id(weights)] = weights, adapter
        return weights

    def prefetch(self, adapter: AdapterRef) -> None:
        """Note what was announced."""
        self.prefetched.append(adapter.version_id)

    def wait(self, seconds: float) -> None:
        """Nothing is ever worth waiting for."""

    def counts(self) -> SourceCounts:
        """Nothing is counted here."""
        return SourceCounts()

    def load(self, slot: int, adapter: AdapterWeights) -> None:
        """Put weights into an empty slot."""
        assert slot not in self.slots, "the slot was not emptied"
        _, self.slots[slot] = self._made[id(adapter)]
        if self.slots[slot].version_id.startswith("odd"):
            raise ValueError("q_proj: a value is not finite in torch.bfloat16")
        if self.slots[slot].version_id.startswith("huge"):
            raise torch.OutOfMemoryError("CUDA out of memory")

    def clear(self, slot: int) -> None:
        """Empty a slot."""
        self.slots.pop(slot, None)

    def served_bytes(self, adapter: AdapterWeights) -> int:
        """Return what the test says, else 1."""
        return self.sizes.get(self._made[id(adapter)][1].version_id, 1)


def cache_of(device: Device, slots: int = 2, max_bytes: int | None = None) -> AdapterCache:
    """A cache on a device."""
    return AdapterCache(range(slots), device, device, max_bytes=max_bytes)


def use(cache: AdapterCache, *versions: str) -> None:
    """Acquire and release versions one after the other."""
    for version in versions:
        assert cache.acquire(ref(version)) is not None
        cache.release(ref(version))


def in_slots(device: Device) -> set[str]:
    """Return the versions in slots."""
    return {adapter.version_id for adapter in device.slots.values()}


def test_the_base_alone_takes_no_slot() -> None:
    cache = cache_of(Device(), slots=0)
    assert cache.acquire(None) == BASE_ONLY
    cache.release(None)
    cache.prefetch(None)


def test_a_version_is_loaded_once_and_the_least_recently_used_one_makes_room() -> None:
    device = Device()
    cache = cache_of(device)
    use(cache, "v1", "v2", "v1")
    assert device.asked == ["v1", "v2"]
    assert cache.acquire(ref("v3")) == 1
    assert cache.acquire(ref("v1")) == 0
    assert in_slots(device) == {"v1", "v3"}
    stats = cache.stats()
    assert (stats.device_hits, stats.evictions, stats.device_versions, stats.device_bytes) == (2, 1, 2, 2)


def test_pinned_versions_stay_until_their_last_release() -> None:
    device = Device()
    cache = cache_of(device, slots=1)
    assert cache.acquire(ref("v1")) == 0
    assert cache.acquire(ref("v1")) == 0
    cache.release(ref("v1"))
    assert cache.acquire(ref("v2")) is None
    assert device.prefetched == ["v2"]
    assert in_slots(device) == {"v1"}
    cache.release(ref("v1"))
    assert cache.acquire(ref("v2")) == 0


@pytest.mark.parametrize("other", [ref("v1", "tnt-b"), ref("v1", adapter="adp-2"), ref("v2")])
def test_tenant_adapter_and_version_all_tell_entries_apart(other: AdapterRef) -> None:
    device = Device()
    cache = cache_of(device)
    first, second = cache.acquire(ref("v1")), cache.acquire(other)
    assert first is not None
    assert second is not None
    assert (device.slots[first], device.slots[second]) == (ref("v1"), other)


def test_a_version_on_its_way_takes_nothing_from_anybody() -> None:
    device = Device()
    device.coming = {"v3"}
    cache = cache_of(device)
    use(cache, "v1", "v2")
    assert cache.acquire(ref("v3")) is None
    assert in_slots(device) == {"v1", "v2"}
    device.coming = set()
    assert cache.acquire(ref("v3")) == 0
    assert in_slots(device) == {"v3", "v2"}


def test_a_version_that_cannot_be_brought_evicts_nobody() -> None:
    device = Device()
    cache = cache_of(device, slots=1)
    use(cache, "v1")
    with pytest.raises(AdapterUnavailableError, match="no such version"):
        cache.acquire(ref("bad"))
    assert in_slots(device) == {"v1"}


@pytest.mark.parametrize(
    ("version", "status", "code"), [("odd", 500, "adapter_unusable"), ("huge", 503, "adapter_out_of_memory")]
)
def test_a_version_that_does_not_go_into_its_slot_leaves_it_empty(version: str, status: int, code: str) -> None:
    device = Device()
    cache = cache_of(device, slots=1)
    use(cache, "v1")
    with pytest.raises(AdapterUnavailableError) as caught:
        cache.acquire(ref(version))
    assert (caught.value.status, caught.value.code) == (status, code)
    assert device.slots == {}
    use(cache, "v1")
    assert device.asked == ["v1", version, "v1"]


def test_versions_make_room_until_the_bytes_fit() -> None:
    device = Device({"v1": 3, "v2": 3, "v3": 2, "large": 6})
    cache = cache_of(device, slots=9, max_bytes=8)
    use(cache, "v1", "v2", "v3")
    assert cache.stats().device_bytes == 8
    use(cache, "v1", "large")
    assert in_slots(device) == {"large"}
    use(cache, "v3")
    assert in_slots(device) == {"large", "v3"}


def test_a_version_larger_than_all_memory_for_adapters_is_refused_at_once() -> None:
    device = Device({"large": 9})
    cache = cache_of(device, max_bytes=8)
    use(cache, "v1")
    with pytest.raises(AdapterUnavailableError, match="takes 9 bytes; a worker here keeps 8 for adapters") as caught:
        cache.acquire(ref("large"))
    assert (caught.value.status, caught.value.code) == (507, "adapter_too_large")
    assert in_slots(device) == {"v1"}


def test_while_pinned_bytes_leave_no_room_nothing_is_evicted_and_others_are_told_to_wait() -> None:
    device = Device({"large": 7})
    cache = cache_of(device, slots=9, max_bytes=8)
    use(cache, "v1")
    cache.acquire(ref("v2"))
    cache.acquire(ref("v3"))
    with pytest.raises(NoRoomError):
        cache.acquire(ref("large"))
    assert in_slots(device) == {"v1", "v2", "v3"}
    cache.release(ref("v2"))
    assert cache.acquire(ref("large")) is not None
    assert in_slots(device) == {"v3", "large"}


def test_what_is_in_a_slot_is_not_announced_again() -> None:
    device = Device()
    cache = cache_of(device)
    use(cache, "v1")
    cache.prefetch(ref("v1"))
    cache.prefetch(ref("v2"))
    assert device.prefetched == ["v2"]
