"""The life of one choice: from a prompt's cache through its tokens to the reason it ends.

Knows sampling, detokenising and stop strings; knows nothing of batches or slots.
"""

from torch import Tensor

from app.contracts.inference import FinishEvent, InferenceEvent, TextEvent, TokenLogprob
from app.text.tokenizer import IncrementalDecoder, TextTokenizer
from workers.inference.logprobs import token_logprobs
from workers.inference.sampler import choice_generator, next_token
from workers.inference.state import Choice, Generation
from workers.inference.stop_strings import StopFilter


def open_choices(generation: Generation, tokenizer: TextTokenizer) -> list[Choice]:
    """Return the request's choices, each with its own copy of the prompt's cache (the last one takes the original)."""
    sampling = generation.request.sampling
    return [
        Choice(
            index=index,
            generator=choice_generator(sampling.seed, index),
            decoder=IncrementalDecoder(tokenizer),
            stops=StopFilter(sampling.stop),
            cache=generation.cache if index == sampling.n - 1 else generation.cache.clone(),
        )
        for index in range(sampling.n)
    ]


def extend(
    generation: Generation, choice: Choice, logits_V: Tensor, tokenizer: TextTokenizer
) -> tuple[list[InferenceEvent], bool]:
    """Draw the choice's next token; return its events and whether the choice has ended."""
    sampling = generation.request.sampling
    token = next_token(logits_V, sampling, choice.generator, choice.counts)
    choice.tokens.append(token)
    choice.counts[token] += 1
    generation.completion_tokens += 1
    if token in tokenizer.eos_token_ids:
        text, stopped, logprobs = choice.stops.flush(), True, []
    else:
        text, stopped = choice.stops.push(choice.decoder.push(token))
        logprobs = _logprobs(logits_V, token, sampling.logprobs, tokenizer)
    ended = stopped or len(choice.tokens) >= sampling.max_tokens
    if ended and not stopped:
        text += choice.stops.flush()
    events: list[InferenceEvent] = [TextEvent(index=choice.index, text=text, logprobs=logprobs)]
    if ended:
        events.append(FinishEvent(index=choice.index, reason="stop" if stopped else "length"))
    return events, ended


def _logprobs(logits_V: Tensor, token: int, top: int | None, tokenizer: TextTokenizer) -> list[TokenLogprob]:
    return [] if top is None else token_logprobs(logits_V[None], [token], top, tokenizer)
