"""How many bytes of state a request takes while it runs, reckoned before it starts. Knows the model's sizes."""

from app.contracts.inference import EmbedRequest, GenerateRequest, InferenceRequest
from workers.models.language_model import LanguageModel


def state_bytes(model: LanguageModel, request: InferenceRequest, read_tokens: int) -> int:
    """Return the most that one of its choices takes, or the sequence it reads; those up to `read_tokens` take nothing.

    Choices are reckoned as if each had a prompt of its own, for each may come to write where they share one.
    """
    if isinstance(request, GenerateRequest):
        return model.state_bytes(len(request.prompt_token_ids) + request.sampling.max_tokens)
    if isinstance(request, EmbedRequest):
        longest = max(len(ids) for ids in request.sequences)
    else:
        longest = max(len(sequence.token_ids) for sequence in request.sequences)
    return model.state_bytes(longest) if longest > read_tokens else 0
