"""Caches that share a beginning: each goes on as if it were alone, and memory is what is said of it."""

from random import Random

import pytest
import torch
from torch import Tensor

from tests.models.exactness import float64_model
from tests.models.tiny_configs import FAMILIES, SPECS, attention_config, hybrid_config, state_space_config
from workers.models.batch import pack
from workers.models.cache import SequenceCache
from workers.models.config import ModelConfig
from workers.models.language_model import LanguageModel
from workers.models.layers import key_value_state

CONFIGS: dict[str, ModelConfig] = {
    "attention": attention_config(),
    **{kind: state_space_config(kind) for kind in SPECS},
    **{family: hybrid_config(family) for family in FAMILIES},
}
IDS = [(5 * i * i + i) % 11 for i in range(30)]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of four tokens, so that short sequences fill several."""
    monkeypatch.setattr(key_value_state, "BLOCK_TOKENS", 4)


@pytest.fixture(params=list(CONFIGS))
def model(request: pytest.FixtureRequest) -> LanguageModel:
    """A tiny model of each kind in float64."""
    return float64_model(CONFIGS[request.param])


@torch.no_grad()
def run(model: LanguageModel, cache: SequenceCache, ids: list[int]) -> Tensor:
    """Append tokens; return their hidden states."""
    return model.hidden(pack([ids], [-1], "cpu", [cache.length]), [cache])


@torch.no_grad()
def whole(model: LanguageModel, ids: list[int]) -> Tensor:
    """Hidden states of one pass without a cache."""
    return model.hidden(pack([ids], [-1], "cpu"))


@pytest.mark.parametrize("seed", range(3))
def test_copies_go_on_as_if_each_were_alone(model: LanguageModel, seed: int) -> None:
    random = Random(seed)
    start = random.randint(1, 9)
    first = model.new_cache(30)
    run(model, first, IDS[:start])
    known = [(first, IDS[:start])]
    for _ in range(12):
        cache, ids = random.choice(known)
        if random.random() < 0.3:
            length = random.randint(1, len(ids)) if cache.cuttable else len(ids)
            copy = random.choice([cache.clone(), cache.at(length, 40), cache.compact()])
            known.append((copy, ids[: copy.length]))
        elif len(ids) < 25:
            more = [random.randrange(11) for _ in range(random.choice([1, 1, 5]))]
            expected = whole(model, ids + more)[len(ids) :]
            assert (run(model, cache, more) - expected).abs().max() < 1e-11
            known = [(c, ids + more if c is cache else i) for c, i in known]
    assert [cache.length for cache, _ in known] == [len(ids) for _, ids in known]


def test_a_full_cache_takes_the_bytes_that_were_announced(model: LanguageModel) -> None:
    for length in (1, 6, 13):
        cache = model.new_cache(length)
        together = [model.new_cache(length) for _ in range(2)]
        for piece in (IDS[: length // 2], IDS[length // 2 : length]):
            if piece:
                run(model, cache, piece)
                with torch.no_grad():
                    starts = [c.length for c in together]
                    model.hidden(pack([piece] * 2, [-1] * 2, "cpu", starts), together)
        for filled in (cache, together[0]):
            assert sum(tensor.nbytes for tensor in filled.compact().tensors()) == model.state_bytes(length)
            assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in filled.compact().tensors())


def test_only_keys_and_values_can_be_cut(model: LanguageModel) -> None:
    cache = model.new_cache(12)
    run(model, cache, IDS[:12])
    assert cache.cuttable == (model.state_bytes(400) == 50 * model.state_bytes(8))
    if not cache.cuttable:
        with pytest.raises(ValueError, match="12 tokens cannot become one of 11"):
            cache.at(11, 20)
    with pytest.raises(ValueError, match="12 tokens cannot become one of 13"):
        cache.at(13, 20)


def test_a_kept_beginning_is_continued_in_place_once_and_grows_by_doubling() -> None:
    model = float64_model(attention_config())
    cache = model.new_cache(100)
    run(model, cache, IDS[:5])
    kept = cache.compact()
    before = [tensor.data_ptr() for tensor in kept.tensors()]
    run(model, cache, [1])
    assert [tensor.data_ptr() for tensor in cache.tensors()] == before
    second = kept.clone()
    run(model, second, [2])
    assert not {tensor.data_ptr() for tensor in second.tensors()} & set(before)
    assert [tensor.shape[0] for tensor in second.tensors()] == [12, 12]
    rows = []
    for token in IDS[6:]:
        run(model, cache, [token])
        rows.append(next(cache.tensors()).shape[0])
    assert sorted(set(rows)) == [12, 28, 60]
    assert (run(model, kept.at(4, 10), IDS[4:6]) - whole(model, IDS[:6])[4:]).abs().max() < 1e-11


def test_a_buffer_never_outgrows_the_capacity() -> None:
    model = float64_model(attention_config())
    cache = model.new_cache(21)
    for token in IDS[:21]:
        run(model, cache, [token])
    assert {tensor.shape[0] for tensor in cache.tensors()} == {24}


def test_a_scans_state_is_written_over_while_no_other_sequence_has_it() -> None:
    model = float64_model(state_space_config("mamba2"))

    def scans(cache: SequenceCache) -> list[Tensor]:
        return [tensor for tensor in cache.tensors() if tensor.ndim == 4]

    cache = model.new_cache(30)
    run(model, cache, IDS[:5])
    before = [scan.data_ptr() for scan in scans(cache)]
    assert len(before) == len(model.config.layers)
    run(model, cache, IDS[5:6])
    assert [scan.data_ptr() for scan in scans(cache)] == before
    kept = cache.clone()
    held = [scan.clone() for scan in scans(kept)]
    run(model, cache, IDS[6:7])
    assert not {scan.data_ptr() for scan in scans(cache)} & set(before)
    assert all(torch.equal(scan, same) for scan, same in zip(scans(kept), held, strict=True))
    place = [scan.data_ptr() for scan in scans(cache)]
    run(model, cache, IDS[7:8])
    assert [scan.data_ptr() for scan in scans(cache)] == place
    assert (run(model, kept, IDS[6:7]) - whole(model, IDS[:7])[6:]).abs().max() < 1e-11
