"""Ragged batches of state-space models: rows, gradients and states are those of each sequence alone."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForCausalLM, Mamba2Config, MambaConfig

from tests.models.conftest import load_small
from tests.models.exactness import float64_model, own_weights
from tests.models.families import PROMPT, save_family
from tests.models.test_mamba_gradients import SPECS
from workers.loading.architectures.mamba import backbone
from workers.lora.bank import AdapterBank
from workers.models.batch import pack
from workers.models.language_model import LanguageModel

VOCABULARY = 11
SENTENCES = st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12), min_size=1, max_size=5)
EXAMPLES = settings(max_examples=20, deadline=None)


def _model(kind: str, seed: int) -> LanguageModel:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 5, "num_hidden_layers": 2}
    return float64_model(backbone(sizes, SPECS[kind], tied=True), seed=seed)


def _gradients(model: LanguageModel, sequences: list[list[int]]) -> dict[str, Tensor]:
    """Gradients of a loss whose rows weigh the same wherever they stand in the batch."""
    bank = AdapterBank(model)
    bank.load(0, own_weights(model), trainable=True)
    hidden_TD = model.hidden(pack(sequences, [0] * len(sequences), "cpu"))
    model.nll(hidden_TD, torch.tensor([i for ids in sequences for i in ids]), 0).sum().backward()
    return {name: leaf.grad for name, leaf in bank.parameters(0).items() if leaf.grad is not None}


@EXAMPLES
@given(kind=st.sampled_from(list(SPECS)), sequences=SENTENCES, seed=st.integers(0, 99))
def test_gradients_of_a_ragged_batch_are_the_sums_over_its_sequences(
    kind: str, sequences: list[list[int]], seed: int
) -> None:
    model = _model(kind, seed)
    together = _gradients(model, sequences)
    alone = [_gradients(model, [ids]) for ids in sequences]
    assert len(together) == len(model.weights())
    for name, gradient in together.items():
        expected = torch.stack([one[name] for one in alone]).sum(0)
        assert (gradient - expected).abs().max() <= 1e-10 * (1 + expected.abs().max()), name


@EXAMPLES
@given(kind=st.sampled_from(list(SPECS)), sequences=SENTENCES, seed=st.integers(0, 99))
def test_sequences_in_random_pieces_give_their_rows_in_one_shot(
    kind: str, sequences: list[list[int]], seed: int
) -> None:
    """Sequences that start, stop and advance by different amounts share forwards, as they do when they are served."""
    model, cuts = _model(kind, seed), Random(seed)
    caches = [model.new_cache(12) for _ in sequences]
    pieces: list[list[Tensor]] = [[] for _ in sequences]
    with torch.no_grad():
        while any(cache.length < len(ids) for cache, ids in zip(caches, sequences, strict=True)):
            steps = [cuts.randint(0, len(ids) - c.length) for ids, c in zip(sequences, caches, strict=True)]
            active = [s for s, step in enumerate(steps) if step]
            if not active:
                continue
            starts = [caches[s].length for s in active]
            taken = [sequences[s][start : start + steps[s]] for s, start in zip(active, starts, strict=True)]
            batch = pack(taken, [-1] * len(active), "cpu", starts)
            rows = model.hidden(batch, [caches[s] for s in active]).split([len(ids) for ids in taken])
            for s, piece in zip(active, rows, strict=True):
                pieces[s].append(piece)
        for ids, parts in zip(sequences, pieces, strict=True):
            whole = model.hidden(pack([ids], [-1], "cpu"))
            assert (torch.cat(parts) - whole).abs().max() < 1e-11


@pytest.mark.parametrize("kind", ["mamba", "mamba2"])
def test_a_copied_state_goes_its_own_way(kind: str) -> None:
    model = _model(kind, 0)
    cache = model.new_cache(9)
    with torch.no_grad():
        model.hidden(pack([[1, 2, 3]], [-1], "cpu"), [cache])
        copy = cache.clone()
        first = model.hidden(pack([[4]], [-1], "cpu", [3]), [cache])
        model.hidden(pack([[9, 9]], [-1], "cpu", [4]), [cache])
        assert torch.equal(model.hidden(pack([[4]], [-1], "cpu", [3]), [copy]), first)


@pytest.mark.parametrize("kind", ["mamba", "mamba2"])
def test_the_residual_stream_of_a_bfloat16_model_is_float32(kind: str, tmp_path: Path) -> None:
    """Embeddings far larger than what layers add: a bfloat16 stream would lose much of it in rounding."""
    sizes = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 16, "bos_token_id": 1, "eos_token_id": 2}
    mamba2 = Mamba2Config(**sizes, state_size=8, num_heads=8, head_dim=8, n_groups=1)
    theirs = save_family(tmp_path, mamba2 if kind == "mamba2" else MambaConfig(**sizes, state_size=8))
    with torch.no_grad():
        theirs.get_input_embeddings().weight.mul_(50)
    theirs.to(torch.bfloat16).save_pretrained(tmp_path)
    exact = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    model = load_small(tmp_path, "bfloat16").model
    assert model.config.wide_residual
    errors = {}
    with torch.no_grad():
        expected = exact.backbone(torch.tensor([PROMPT])).last_hidden_state[0]
        for wide in (True, False):
            model.config = replace(model.config, wide_residual=wide)
            found = model.hidden(pack([PROMPT], [-1], "cpu"))
            errors[wide] = float((found - expected).norm() / expected.norm())
    assert errors[True] < min(0.003, errors[False] / 2), errors
