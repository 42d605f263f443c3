"""Our logits against transformers' LlamaForCausalLM, in float32, on models saved by transformers."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from tests.models.conftest import load_small, save_llama
from workers.loading import LoadedBase
from workers.models.batch import pack

PROMPT = [5, 17, 80, 3, 44, 9, 61, 2, 33, 70, 12]


def _theirs(model: LlamaForCausalLM, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


def test_logits_in_one_shot(base: LoadedBase, reference: LlamaForCausalLM) -> None:
    ours = base.model.logits(base.model.hidden(pack([PROMPT], [-1], "cpu")))
    assert ours.dtype == torch.float32
    assert (ours - _theirs(reference, PROMPT)).abs().max() < 1e-4


@pytest.mark.parametrize("prefill", [1, 4])
def test_logits_token_by_token(base: LoadedBase, reference: LlamaForCausalLM, prefill: int) -> None:
    model, cache = base.model, base.model.new_cache(len(PROMPT))
    with torch.no_grad():
        pieces = [model.hidden(pack([PROMPT[:prefill]], [-1], "cpu"), [cache])]
        for position in range(prefill, len(PROMPT)):
            pieces.append(model.hidden(pack([[PROMPT[position]]], [-1], "cpu", [position]), [cache]))
    assert cache.length == len(PROMPT)
    assert (model.logits(torch.cat(pieces)) - _theirs(reference, PROMPT)).abs().max() < 1e-4


def test_prefill_continues_a_filled_cache(base: LoadedBase, reference: LlamaForCausalLM) -> None:
    model, cache = base.model, base.model.new_cache(32)
    with torch.no_grad():
        first = model.hidden(pack([PROMPT[:5]], [-1], "cpu"), [cache])
        copy = cache.clone()
        second = model.hidden(pack([PROMPT[5:]], [-1], "cpu", [5]), [cache])
        again = model.hidden(pack([PROMPT[5:]], [-1], "cpu", [5]), [copy])
    assert (model.logits(torch.cat([first, second])) - _theirs(reference, PROMPT)).abs().max() < 1e-4
    assert torch.equal(second, again)


@pytest.mark.parametrize("shard_size", ["1GB", "20KB"])
def test_untied_head_and_shards(tmp_path: Path, shard_size: str) -> None:
    save_llama(tmp_path, tied=False, shard_size=shard_size)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard_size == "20KB")
    model = load_small(tmp_path).model
    theirs = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert (model.logits(model.hidden(pack([PROMPT], [-1], "cpu"))) - _theirs(theirs, PROMPT)).abs().max() < 1e-4


def test_info_describes_the_model(base: LoadedBase, reference: LlamaForCausalLM) -> None:
    assert base.info.parameters == sum(p.numel() for p in reference.parameters())
    assert base.info.eos_token_ids == [2, 3]
    assert base.info.bos_token_id == 1
    assert len(base.info.modules) == 3 * 7
    assert base.info.modules["model.layers.1.mlp.down_proj"].in_features == 56


def test_a_full_cache_is_refused(base: LoadedBase) -> None:
    with pytest.raises(ValueError, match="cache 0 holds 0 of 4 tokens; 5 more do not fit"):
        base.model.hidden(pack([PROMPT[:5]], [-1], "cpu"), [base.model.new_cache(4)])
