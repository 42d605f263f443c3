"""LoRA training of Mamba-1 and Mamba-2 at the 130M shapes (random weights): Graft beside transformers + peft.

Run `python benchmarks/train_ssm_cpu.py`; it needs `mambapy` beside the test dependencies. The peer trains what peft
allows (Mamba-1: in_proj and x_proj, Mamba-2: in_proj), Graft all four or two projections. Mamba-1's peer runs with
`use_mambapy=True` and with its default loop; the loop and Mamba-2's peer take so long that they get a single step.
The peer computes in float32, for mambapy's path fails in bfloat16.
"""

import argparse
import statistics
import time
from collections.abc import Iterator

import torch
from side_by_side import compare, report

from workers.models.language_model import LanguageModel

VOCABULARY = 50_280
PEER_TARGETS = {"mamba": ["in_proj", "x_proj"], "mamba2": ["in_proj"]}
TARGETS = {"mamba": ["in_proj", "x_proj", "dt_proj", "out_proj"], "mamba2": ["in_proj", "out_proj"]}


def peer_config(family: str, *, mambapy: bool) -> object:
    from transformers import Mamba2Config, MambaConfig

    if family == "mamba":
        return MambaConfig(
            vocab_size=VOCABULARY, hidden_size=768, num_hidden_layers=24, state_size=16, use_mambapy=mambapy
        )
    return Mamba2Config(
        vocab_size=VOCABULARY,
        hidden_size=768,
        num_hidden_layers=24,
        state_size=128,
        num_heads=24,
        head_dim=64,
        n_groups=1,
        tie_word_embeddings=True,
    )


def peer_steps(family: str, ids_BL: torch.Tensor, *, mambapy: bool) -> Iterator[object]:
    """One optimizer step of transformers + peft per item."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_config(peer_config(family, mambapy=mambapy))
    config = LoraConfig(r=16, lora_alpha=32, target_modules=PEER_TARGETS[family], task_type="CAUSAL_LM")
    model = get_peft_model(base, config)
    model.train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    while True:
        loss = model(input_ids=ids_BL, labels=ids_BL).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield loss


def random_model(family: str) -> LanguageModel:
    """Return Graft's model of the same shapes, in the worker's dtype for this machine."""
    from workers.loading.architectures import ARCHITECTURES
    from workers.loading.base import resolve_dtype

    config = peer_config(family, mambapy=False).to_dict()
    name = {"mamba": "MambaForCausalLM", "mamba2": "Mamba2ForCausalLM"}[family]
    place = torch.device("cpu")
    model = LanguageModel(ARCHITECTURES[name].read_config(config), place, resolve_dtype("auto", place))
    generator = torch.Generator().manual_seed(0)
    for weight in model.weights().values():
        if weight.name.endswith(("A_log", "dt_bias", "dt_proj.bias")):
            weight.base.uniform_(-4, 1, generator=generator)
        elif weight.base.ndim == 1:
            weight.base.fill_(1)
        else:
            weight.base.normal_(0, 0.02, generator=generator)
    model.freeze()
    return model


def graft_steps(family: str, ids_BL: torch.Tensor, count: int) -> Iterator[object]:
    """One StepDone of a TrainingRun per item."""
    from graft_side import lora_steps

    from app.contracts.base_models import ModuleShape

    model = random_model(family)
    modules = model.linears()
    shapes = {n: ModuleShape(out_features=m.out_features, in_features=m.in_features) for n, m in modules.items()}
    return lora_steps(model, shapes, ids_BL.tolist(), TARGETS[family], count)


def _rate(steps: Iterator[object], tokens: int, *, warm_up: int, count: int) -> float:
    times = []
    for step in range(warm_up + count):
        began = time.perf_counter()
        next(steps)
        if step >= warm_up:
            times.append(time.perf_counter() - began)
    return tokens / statistics.median(times)


def _cases(only: str | None) -> dict[str, dict[str, list[str]]]:
    cases = {}
    for case, family, length, scan in (
        ("mamba L256, mambapy", "mamba", 256, "mambapy"),
        ("mamba L512, mambapy", "mamba", 512, "mambapy"),
        ("mamba L256, default", "mamba", 256, "default"),
        ("mamba L512, default", "mamba", 512, "default"),
        ("mamba2 L256", "mamba2", 256, "default"),
    ):
        common = ["--family", family, "--length", str(length)]
        slow = scan == "default"
        peer = ["--side", "peer", *common, "--scan", scan, "--steps", "1", "--warm-up", "0" if slow else "1"]
        cases[case] = {"peer": peer, "graft": ["--side", "graft", *common, "--steps", "4", "--warm-up", "1"]}
    return {case: sides for case, sides in cases.items() if only is None or case == only}


def main() -> None:
    """Compare all cases or one, or run one side when asked by the parent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=["peer", "graft"])
    parser.add_argument("--family", choices=["mamba", "mamba2"])
    parser.add_argument("--scan", choices=["mambapy", "default"])
    parser.add_argument("--length", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--warm-up", type=int)
    parser.add_argument("--case", help="only this case, as 'mamba L256, mambapy'")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if options.side is None:
        compare(__file__, _cases(options.case), repetitions=options.repetitions, threads=options.threads, tuned=False)
        return
    ids_BL = torch.randint(3, 50_000, (1, options.length), generator=torch.Generator().manual_seed(0))
    if options.side == "peer":
        steps = peer_steps(options.family, ids_BL, mambapy=options.scan == "mambapy")
    else:
        steps = graft_steps(options.family, ids_BL, options.warm_up + options.steps)
    report(_rate(steps, ids_BL.numel(), warm_up=options.warm_up, count=options.steps))


if __name__ == "__main__":
    main()
