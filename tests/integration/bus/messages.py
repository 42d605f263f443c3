"""Requests and events to send over the bus."""

from app.contracts.adapters import AdapterRef
from app.contracts.inference import (
    DoneEvent,
    FinishEvent,
    GenerateRequest,
    SamplingParams,
    ScoredSequence,
    ScoreRequest,
    TextEvent,
    TokenLogprob,
)

BASE = "smol"
SAMPLING = SamplingParams(
    max_tokens=16,
    temperature=0.0,
    top_p=1.0,
    top_k=0,
    seed=7,
    n=1,
    stop=["\n"],
    presence_penalty=0.0,
    frequency_penalty=0.0,
    logprobs=None,
    prompt_logprobs=False,
)


def generate(request_id: str, tokens: int = 3, base_model: str = BASE) -> GenerateRequest:
    """Return a request with a prompt of `tokens` tokens."""
    adapter = AdapterRef(
        tenant_id="tnt-1", adapter_id="adp-1", version_id="ver-1", weights_id="blob-1", config={"r": 8}
    )
    return GenerateRequest(
        id=request_id,
        tenant_id="tnt-1",
        base_model=base_model,
        adapter=adapter,
        prompt_token_ids=list(range(tokens)),
        sampling=SAMPLING,
    )


def score(request_id: str) -> ScoreRequest:
    """Return a request to score one sequence."""
    sequence = ScoredSequence(token_ids=[1, 2, 3], loss_mask=[0, 1, 1])
    return ScoreRequest(id=request_id, base_model=BASE, adapter=None, sequences=[sequence])


def text(index: int) -> TextEvent:
    """Return a text event that is told from others by its number and is not plain ASCII."""
    token = TokenLogprob(token_id=index, token="é", logprob=-0.1, top=[(index, "é", -0.1)])
    return TextEvent(index=0, text=f"é{index}", logprobs=[token])


FINISH = FinishEvent(index=0, reason="stop")
DONE = DoneEvent(prompt_tokens=3, completion_tokens=2)
