"""The engine while adapters load: others decode on, failures reach whom they concern, and an idle engine waits."""

from collections.abc import Callable

from app.contracts.inference import DoneEvent, ErrorEvent
from tests.unit.inference.conftest import Harness, generate
from tests.unit.inference.test_engine import PROMPT, text_of
from workers.inference.adapter_cache import AdapterCache
from workers.inference.engine import Engine
from workers.inference.scheduler import Limits
from workers.loading import LoadedBase

Harnesses = Callable[..., Harness]


def test_others_decode_while_a_version_is_on_its_way(harness: Harnesses) -> None:
    made = harness()
    alone = made.run(generate("r", PROMPT, "v1"))["r"]
    made = harness()
    made.source.coming = {"v1"}
    made.engine.submit(generate("late", PROMPT, "v1"))
    made.engine.submit(generate("base", PROMPT, max_tokens=3))
    assert [set(made.engine.step()) for _ in range(3)] == [{"base"}] * 3
    assert made.source.waits == 0
    assert made.engine.step() == {}
    assert (made.source.waits, made.engine.busy) == (1, True)
    made.source.coming = set()
    assert text_of(made.run()["late"]) == text_of(alone)


def test_a_version_is_announced_when_its_request_comes_and_before_its_turn(harness: Harnesses) -> None:
    made = harness(max_sequences=1)
    made.engine.submit(generate("first", PROMPT))
    made.engine.submit(generate("second", PROMPT, "v1"))
    made.engine.step()
    assert (made.source.prefetched, made.source.asked) == (["v1"], [])


def test_a_failed_load_is_told_to_all_who_wait_for_the_version_and_to_nobody_else(harness: Harnesses) -> None:
    made = harness(max_sequences=1)
    made.source.coming = {"v9"}
    for request in (generate("a", PROMPT, "v9"), generate("b", PROMPT, "v9"), generate("c", PROMPT, "v1")):
        made.engine.submit(request)
    assert set(made.engine.step()) == {"c"}
    made.engine.submit(generate("other", PROMPT, "v9", "tnt-b"))
    made.source.coming = set()
    events = made.run()
    gone = [ErrorEvent(status=404, code="adapter_not_found", message="version v9 is gone")]
    assert (events["a"], events["b"], events["other"]) == (gone, gone, gone)
    assert made.source.asked == ["v9", "v9", "v1", "v9", "v9"]
    assert isinstance(events["c"][-1], DoneEvent)


def test_small_versions_do_not_keep_a_large_one_out_for_ever(base: LoadedBase, harness: Harnesses) -> None:
    made = harness()
    sizes = {name: made.bank.served_bytes(adapter) for name, adapter in made.source.adapters.items()}
    small, large = sorted(sizes, key=lambda name: sizes[name])[::2]
    cache = AdapterCache(range(4), made.source, made.bank, max_bytes=sizes[large])
    made.engine = Engine(base.model, base.info, cache, made.prefixes, limits=Limits(8))
    made.engine.submit(generate("running", PROMPT, small, max_tokens=4))
    made.engine.step()
    made.engine.submit(generate("large", PROMPT, large, "tnt-b"))
    made.engine.submit(generate("small", PROMPT, small))
    assert [set(made.engine.step()) for _ in range(4)] == [{"running"}] * 3 + [{"large"}]
    assert {type(events[-1]) for events in made.run().values()} == {DoneEvent}
    assert cache.stats().device_bytes <= sizes[large]
