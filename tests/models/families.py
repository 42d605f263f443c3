"""Small random models of the families in transformers, saved as users have them, and what ours must equal."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from tests.models.conftest import load_small, save_tokenizer
from workers.loading import LoadedBase
from workers.models.batch import pack
from workers.models.language_model import LanguageModel

PROMPT = [5, 17, 80, 3, 44, 9, 61, 2, 33, 70, 12, 7, 7, 90, 1, 28]
ROWS = [PROMPT, [4, 8, 15], [16, 23, 42], [9], PROMPT[::-1]]


def save_family(directory: Path, config: PreTrainedConfig, *, seed: int = 0) -> PreTrainedModel:
    """Save a model with every weight away from its start, and a tokenizer; return it in float32."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim >= 2 and "A_log" not in name:
                parameter.copy_(noise * (0.3 if "embed" in name else parameter.shape[-1] ** -0.5))
            else:
                parameter.add_(noise * 0.2)
    model.save_pretrained(directory)
    save_tokenizer(directory)
    return model


def logits_of(model: LanguageModel, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model.logits(model.hidden(pack([ids], [-1], "cpu")))


def logits_token_by_token(model: LanguageModel, ids: list[int], prefill: int) -> torch.Tensor:
    """Logits of every position, the first `prefill` tokens at once and the others one at a time with a cache."""
    cache = model.new_cache(len(ids))
    with torch.no_grad():
        pieces = [model.hidden(pack([ids[:prefill]], [-1], "cpu"), [cache])]
        for position in range(prefill, len(ids)):
            pieces.append(model.hidden(pack([[ids[position]]], [-1], "cpu", [position]), [cache]))
    assert cache.length == len(ids)
    return model.logits(torch.cat(pieces))


def logits_in_two_pieces(model: LanguageModel, ids: list[int]) -> torch.Tensor:
    """A prompt that is filled in in two chunks, as a long one is served."""
    cache, half = model.new_cache(len(ids)), len(ids) // 2
    with torch.no_grad():
        first = model.hidden(pack([ids[:half]], [-1], "cpu"), [cache])
        second = model.hidden(pack([ids[half:]], [-1], "cpu", [half]), [cache])
    return model.logits(torch.cat([first, second]))


def assert_equals_theirs(directory: Path, config: PreTrainedConfig) -> LoadedBase:
    """One shot, token by token, and a packed batch: all give the logits of transformers."""
    theirs = save_family(directory, config)
    base = load_small(directory)
    with torch.no_grad():
        expected = theirs(torch.tensor([PROMPT])).logits[0].float()
    assert expected.std() > 0.1
    assert (logits_of(base.model, PROMPT) - expected).abs().max() < 1e-4
    assert (logits_in_two_pieces(base.model, PROMPT) - expected).abs().max() < 1e-4
    for prefill in (1, 5):
        assert (logits_token_by_token(base.model, PROMPT, prefill) - expected).abs().max() < 1e-4
    assert_batch_equals_rows(base.model)
    return base


def assert_batch_equals_rows(model: LanguageModel) -> None:
    """Nothing crosses a sequence boundary, with caches and without."""
    with torch.no_grad():
        caches = [model.new_cache(40) for _ in ROWS]
        together = model.hidden(pack(ROWS, [-1] * len(ROWS), "cpu"))
        cached = model.hidden(pack(ROWS, [-1] * len(ROWS), "cpu"), caches)
        alone = torch.cat([model.hidden(pack([row], [-1], "cpu")) for row in ROWS])
        copies = [(row, cache.clone()) for row, cache in zip(ROWS, caches, strict=True)]
        following = [model.hidden(pack([[3]], [-1], "cpu", [len(row)]), [copy]) for row, copy in copies]
        followed = model.hidden(pack([[3]] * len(ROWS), [-1] * len(ROWS), "cpu", [len(row) for row in ROWS]), caches)
    assert (together - alone).abs().max() < 1e-5 * alone.abs().max()
    assert (cached - alone).abs().max() < 1e-5 * alone.abs().max()
    assert (followed - torch.cat(following)).abs().max() < 1e-5 * alone.abs().max()
