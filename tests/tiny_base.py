"""A base model as a worker would register it, with a byte-level tokenizer and no weights anywhere."""

import json

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from app.contracts.base_models import BaseModelInfo, ModuleShape

BASE = "tiny-base"
CONTEXT = 512
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
_SHAPES = {
    "self_attn.q_proj": (32, 32),
    "self_attn.k_proj": (16, 32),
    "self_attn.v_proj": (16, 32),
    "self_attn.o_proj": (32, 32),
    "mlp.gate_proj": (48, 32),
    "mlp.up_proj": (48, 32),
    "mlp.down_proj": (32, 48),
}


def tiny_base(model_id: str = BASE) -> BaseModelInfo:
    """Return a base model with two layers; each byte is a token, and so are the two ChatML marks."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)])
    return BaseModelInfo(
        id=model_id,
        architecture="llama",
        parameters=12_345,
        bytes=49_380,
        context_length=CONTEXT,
        vocab_size=tokenizer.get_vocab_size(),
        dtype="float32",
        quantization="none",
        modules={
            f"model.layers.{layer}.{name}": ModuleShape(out_features=n, in_features=k)
            for layer in range(2)
            for name, (n, k) in _SHAPES.items()
        },
        default_targets=TARGETS,
        tokenizer_json=json.dumps(json.loads(tokenizer.to_str())),
        chat_template=None,
        bos_token_id=None,
        eos_token_ids=[tokenizer.token_to_id("<|im_end|>")],
    )
