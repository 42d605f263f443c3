"""What makes a request impossible on this model. The service checks too; here it protects the neighbours in a batch."""

from app.contracts.base_models import BaseModelInfo
from app.contracts.inference import EmbedRequest, ErrorEvent, GenerateRequest, InferenceRequest, ScoreRequest
from workers.inference.scheduler import Limits, places_of


def problem_with(request: InferenceRequest, info: BaseModelInfo, places: int) -> ErrorEvent | None:
    """Return the error that refuses the request, whatever it needs of memory, or None."""
    if isinstance(request, GenerateRequest):
        sequences, n = [request.prompt_token_ids], request.sampling.n
        length = len(request.prompt_token_ids) + request.sampling.max_tokens
    else:
        sequences, n = _sequences_of(request), 1
        length = max(len(ids) for ids in sequences)
    if not all(sequences):
        return _refuse("empty_sequence", "a sequence has no tokens")
    if n > places:
        return _refuse("n_too_large", f"n is {n}, but this worker runs at most {places} choices at once")
    if length > info.context_length:
        return _refuse(
            "context_length_exceeded",
            f"{length} tokens (prompt and max_tokens) exceed the context length of {info.context_length}",
        )
    unknown = next((i for ids in sequences for i in ids if not 0 <= i < info.vocab_size), None)
    if unknown is not None:
        return _refuse("invalid_token", f"token id {unknown} is outside the vocabulary of {info.vocab_size}")
    return None


def too_large(request: InferenceRequest, bytes_each: int, limits: Limits) -> ErrorEvent | None:
    """Return the error that refuses a request whose state would not fit even if it ran alone, or None."""
    needed = places_of(request) * bytes_each
    if limits.state_bytes is None or needed <= limits.state_bytes:
        return None
    if isinstance(request, GenerateRequest):
        tokens, n = len(request.prompt_token_ids) + request.sampling.max_tokens, request.sampling.n
        what = f"{tokens} tokens (prompt and max_tokens)" + (f" of {n} choices" if n > 1 else "")
    else:
        what = f"a sequence of {max(map(len, _sequences_of(request)))} tokens"
    return _refuse(
        "state_too_large",
        f"the state of {what} takes {needed} bytes; this worker has {limits.state_bytes} for all requests",
    )


def _sequences_of(request: ScoreRequest | EmbedRequest) -> list[list[int]]:
    if isinstance(request, EmbedRequest):
        return request.sequences
    return [sequence.token_ids for sequence in request.sequences]


def _refuse(code: str, message: str) -> ErrorEvent:
    return ErrorEvent(status=400, code=code, message=message)
