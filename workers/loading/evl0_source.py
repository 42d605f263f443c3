"""Opens an EVL0 file as a base model, `evl0:PATH`.

The format has no tokenizer: one beside the file is taken, else one of bytes.
"""

from dataclasses import asdict
from pathlib import Path

from tokenizers import Tokenizer

from workers.loading.architectures.base import Json, LoadingError
from workers.loading.architectures.evermind import NAME, from_seed_names, read_config
from workers.loading.byte_tokenizer import END_ID, VOCABULARY, byte_tokenizer_json
from workers.loading.checkpoint import Checkpoint
from workers.loading.evl0 import EvermindShape, parse_evl0
from workers.loading.tokenizer_files import find_tokenizer


def config_of(shape: EvermindShape) -> Json:
    """Return the config.json that stands for an EVL0 header."""
    sizes = asdict(shape)
    names = {
        "vocab": "vocab_size",
        "width": "hidden_size",
        "layers": "num_hidden_layers",
        "taps": "conv_kernel",
        "hidden": "expert_size",
        "experts": "num_experts",
        "top_k": "top_k",
    }
    return {"architectures": [NAME], "model_type": "evermind", **{names[k]: v for k, v in sizes.items()}}


def _tokenizer(path: Path, shape: EvermindShape) -> tuple[str, list[int]]:
    given = find_tokenizer(path.parent, {})
    if given is not None:
        known = Tokenizer.from_str(given).get_vocab_size()
        if known > shape.vocab:
            raise LoadingError(f"{path}: its vocabulary of {shape.vocab} has no room for the tokenizer's {known}")
        return given, []
    if shape.vocab < VOCABULARY:
        raise LoadingError(
            f"{path}: a vocabulary of {shape.vocab} has no room for the {VOCABULARY} tokens of bytes: "
            "put a tokenizer.json beside it"
        )
    return byte_tokenizer_json(), [END_ID]


def read_evl0(path: Path) -> Checkpoint:
    """Open an EVL0 file. Raises LoadingError naming the file and what is wrong with it."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LoadingError(f"{path}: not readable: {error}") from error
    shape, tensors = parse_evl0(data)
    tokenizer_json, ends = _tokenizer(path, shape)
    config = config_of(shape)
    return Checkpoint(
        architecture=NAME,
        config=read_config(config),
        config_json=config,
        tensors=from_seed_names(tensors, shape.layers, shape.experts),
        tokenizer_json=tokenizer_json,
        chat_template=None,
        bos_token_id=None,
        eos_token_ids=ends,
    )
