"""Writes a fresh base model as a Hugging Face directory: `python -m workers.loading.new_model --help`.

Knows presets, tokenizers and files. What it writes, `hf:DIRECTORY` loads.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from workers.loading.architectures.base import LoadingError
from workers.loading.architectures.graft_hybrid import PRESETS, new_config, read_config
from workers.loading.byte_tokenizer import byte_tokenizer_json
from workers.loading.initial_weights import initialise
from workers.loading.tokenizer_files import find_tokenizer
from workers.models.language_model import LanguageModel

BYTES = "bytes"
_ENDS = ("<|im_end|>", "<|endoftext|>", "</s>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _tokenizer(source: str) -> str:
    """Return the tokenizer as JSON: of bytes, a tokenizer.json, or of a directory that holds one or its files."""
    if source == BYTES:
        return byte_tokenizer_json()
    path = Path(source)
    directory = path.parent if path.name == "tokenizer.json" else path
    found = find_tokenizer(directory, {})
    if found is None:
        raise LoadingError(f"tokenizer: {path} holds neither tokenizer.json nor vocab.json and merges.txt")
    return found


def write_new_model(out: Path, *, preset: str, schedule: str, tokenizer: str, seed: int) -> int:
    """Write the directory and return the number of parameters. Raises LoadingError; then nothing is written."""
    text = _tokenizer(tokenizer)
    known = Tokenizer.from_str(text)
    config = new_config(preset, schedule, known.get_vocab_size())
    end = next((token for token in _ENDS if known.token_to_id(token) is not None), None)
    if end is not None:
        config["eos_token_id"] = known.token_to_id(end)
    if out.exists() and any(out.iterdir()):
        raise LoadingError(f"out: {out} exists and is not empty")
    model = LanguageModel(read_config(config), torch.device("cpu"), torch.float32)
    initialise(model, seed=seed)
    out.mkdir(parents=True, exist_ok=True)
    tensors = {name: weight.base.contiguous() for name, weight in model.weights().items()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    (out / "tokenizer.json").write_text(text, "utf-8")
    (out / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}, indent=2) + "\n", "utf-8")
    return sum(tensor.numel() for tensor in tensors.values())


def main() -> int:
    """Read the command line and write; returns the exit status."""
    parser = argparse.ArgumentParser(prog="new_model", description=__doc__)
    parser.add_argument("--preset", required=True, help=", ".join(PRESETS))
    parser.add_argument("--schedule", default="jamba", help="jamba, zamba, or a list of mamba1, mamba2 and attention")
    parser.add_argument("--tokenizer", default=BYTES, help="a tokenizer.json, a directory that holds one, or 'bytes'")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        count = write_new_model(
            options.out,
            preset=options.preset,
            schedule=options.schedule,
            tokenizer=options.tokenizer,
            seed=options.seed,
        )
    except LoadingError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{options.out}: {count:,} parameters\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
