"""Small models that every test here shares: random, saved by transformers, loaded by us."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from app.contracts.base_models import ModuleShape
from tests.llama import llama_config
from workers.loading import LoadedBase, load_base_model
from workers.models.language_model import LanguageModel

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def save_llama(directory: Path, *, tied: bool, shard_size: str = "1GB") -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=56,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=[2, 3],
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(directory, max_shard_size=shard_size)
    save_tokenizer(directory)
    return directory


def save_tokenizer(directory: Path) -> None:
    tokenizer = Tokenizer(models.BPE(vocab={chr(33 + i): i for i in range(94)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))


def load_small(directory: Path, dtype: str = "float32") -> LoadedBase:
    return load_base_model(f"hf:{directory}", model_id="small", device="cpu", dtype=dtype, quantization="none")


@pytest.fixture(scope="session")
def llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("llama"), tied=True)


@pytest.fixture
def base(llama_dir: Path) -> LoadedBase:
    return load_small(llama_dir)


@pytest.fixture
def reference(llama_dir: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(llama_dir, dtype=torch.float32).eval()


def random_model(dtype: torch.dtype, *, tied: bool = True, seed: int = 0) -> LanguageModel:
    """A model small enough for finite differences, with every weight away from zero."""
    config = llama_config(
        vocab_size=11,
        hidden_size=8,
        intermediate_size=6,
        layers=2,
        heads=2,
        kv_heads=1,
        head_dim=4,
        context_length=32,
        rope_theta=100.0,
        norm_eps=1e-5,
        tied_head=tied,
    )
    model = LanguageModel(config, torch.device("cpu"), dtype)
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.weights().items():
        with torch.no_grad():
            weight.base.copy_(
                torch.randn(weight.shape, generator=generator, dtype=torch.float64) * 0.4 + ("norm" in name)
            )
    return model


def module_shapes(model: LanguageModel) -> dict[str, ModuleShape]:
    return {
        name: ModuleShape(out_features=module.out_features, in_features=module.in_features)
        for name, module in model.adaptable().items()
    }
