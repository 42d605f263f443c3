"""What the extra targets buy: our full target set on Mamba-1 against the subset that peft trains, at equal parameters.

Run `python benchmarks/target_sets.py`. A small Mamba-1 (preset nano, byte tokens) first learns plain English from the
project's own pages; then both target sets learn the same two tasks from it: facts (a code for each of 48 names, which
nothing but training can tell) and the support chats in examples/, judged on their validation file. Ranks are chosen so
that trainable scalars match within two per cent. Each set gets the learning rate, of three, that serves it best.

peft 0.21 refuses out_proj and conv1d on Mamba and gives dt_proj no gradient, so its set is in_proj and x_proj.
"""

import argparse
import json
import random
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch

from app.contracts.training import JobConfig
from app.text.tokenize import TokenizedExample
from workers.loading import LoadedBase, load_base_model
from workers.loading.new_model import write_new_model
from workers.lora.adapter import AdapterWeights, count_parameters
from workers.lora.bank import AdapterBank
from workers.lora.new_adapter import new_full, new_lora
from workers.models.batch import pack
from workers.models.scoring import sequence_nll
from workers.training.events import Finished
from workers.training.trainer import TrainingRun

ROOT = Path(__file__).parent.parent
RATES = (3e-3, 1e-2, 3e-2)


class TargetSet(NamedTuple):
    """Names of targets, and the rank that gives the set its share of parameters."""

    targets: list[str]
    rank: int


SETS = {
    "peft's": TargetSet(["in_proj", "x_proj"], 13),
    "ours": TargetSet(["in_proj", "x_proj", "dt_proj", "out_proj", "conv1d", "A_log", "D", "dt_bias"], 4),
}


def _config(mode: str, rate: float, epochs: int, chosen: TargetSet | None) -> JobConfig:
    lora = chosen and {"rank": chosen.rank, "alpha": 2 * chosen.rank, "targets": chosen.targets, "seed": 0}
    return JobConfig.model_validate(
        {
            "mode": mode,
            "seed": 0,
            "lora": lora,
            "trust_region": {"max_delta": 0.0},
            "rollback": {"enabled": False, "tolerance": 1.25},
            "training": {
                "epochs": epochs, "batch_size": 8, "learning_rate": rate, "seq_len": 512, "max_grad_norm": 1.0,
                "weight_decay": 0.0, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "gradient_accumulation": 1,
                "warmup_steps": 10,
            },
        }
    )  # fmt: skip


def _example(text: str, counted_from: int = 0) -> TokenizedExample:
    ids = list(text.encode())
    return TokenizedExample(ids, [int(i >= max(1, counted_from)) for i in range(len(ids))])


def _train(base: LoadedBase, slot: int, config: JobConfig, data: list[TokenizedExample]) -> AdapterWeights:
    bank = AdapterBank(base.model)
    start = new_full(base.model) if config.lora is None else new_lora(base.info, config.lora)
    *_, last = TrainingRun(base.model, bank, slot, config, start, data).slices()
    assert isinstance(last, Finished)
    assert last.adapter is not None
    bank.load(slot, last.adapter)
    return last.adapter


def _perplexity(base: LoadedBase, slot: int, data: list[TokenizedExample]) -> float:
    pairs = [(example.token_ids, example.loss_mask) for example in data]
    found = list(sequence_nll(base.model, pairs, slot))
    return float(torch.tensor(sum(nll for nll, _ in found) / sum(count for _, count in found)).exp())


def _recalled(base: LoadedBase, slot: int, facts: list[tuple[str, str]]) -> float:
    """Return the share of facts whose whole code is the model's first choice, byte by byte."""
    right = 0
    with torch.no_grad():
        for question, code in facts:
            ids = list((question + code).encode())
            logits = base.model.logits(base.model.hidden(pack([ids], [slot], "cpu")), [slot] * len(ids))
            guessed = logits.argmax(-1)[len(question) - 1 : -1].tolist()
            right += guessed == list(code.encode())
    return right / len(facts)


def _facts() -> list[tuple[str, str]]:
    draw = random.Random(7)
    letters = "abcdefghijklmnopqrstuvwxyz"
    names = {"".join(draw.choices(letters, k=5)) for _ in range(48)}
    return [(f"code of {name}: ", "".join(draw.choices(letters, k=4)) + ".") for name in sorted(names)]


def _chats(name: str) -> list[TokenizedExample]:
    lines = (ROOT / "examples" / name).read_text().splitlines()
    turns = [json.loads(line)["messages"] for line in lines]
    return [_example("\n".join(f"{turn['role']}: {turn['content']}" for turn in chat)) for chat in turns]


def _pages() -> list[TokenizedExample]:
    text = "\n".join(path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
    return [_example(text[i : i + 512]) for i in range(0, len(text), 512)]


def main() -> None:
    """Train the base, then both sets on both tasks; print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-epochs", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=12)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory) / "nano"
        write_new_model(place, preset="nano", schedule="mamba1", tokenizer="bytes", seed=0)
        base = load_base_model(f"hf:{place}", model_id="nano", device="cpu", dtype="float32", quantization="none")
    pages = _pages()
    learnt = _train(base, 0, _config("full", 2e-3, options.base_epochs, None), pages)
    weights = base.model.weights()
    for name, tensor in learnt.own.items():
        weights[name].base.copy_(tensor)
    AdapterBank(base.model).clear(0)
    print(f"base: {base.info.parameters:,} parameters, perplexity on its pages {_perplexity(base, -1, pages):.2f}")
    facts, chats, held = _facts(), _chats("support_chats.jsonl"), _chats("support_chats_validation.jsonl")
    asked = [_example(question + code, len(question)) for question, code in facts]
    recalled, held_out = _recalled(base, -1, facts), _perplexity(base, -1, held)
    print(f"before: facts recalled {recalled:.0%}; chats held out {held_out:.3f}")
    for name, chosen in SETS.items():
        tasks = []
        for rate in RATES:
            adapter = _train(base, 0, _config("lora", rate, 3 * options.epochs, chosen), asked)
            recalled = _recalled(base, 0, facts), -_perplexity(base, 0, asked), rate
            _train(base, 0, _config("lora", rate, options.epochs, chosen), chats)
            tasks.append((recalled, (-_perplexity(base, 0, held), rate), count_parameters(adapter)))
        best, text, scalars = max(t[0] for t in tasks), max(t[1] for t in tasks), tasks[0][2]
        print(
            f"{name} ({', '.join(chosen.targets)}; rank {chosen.rank}, {scalars:,} scalars): "
            f"facts recalled {best[0]:.0%} (perplexity {-best[1]:.3f}, rate {best[2]:g}); "
            f"chats held out {-text[0]:.3f} (rate {text[1]:g})",
            flush=True,
        )


if __name__ == "__main__":
    main()
