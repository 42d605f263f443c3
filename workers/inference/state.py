"""What the engine remembers of the requests it runs. Data only."""

from collections import Counter
from dataclasses import dataclass, field

import torch

from app.contracts.inference import GenerateRequest, TokenLogprob
from app.text.tokenizer import IncrementalDecoder
from workers.inference.stop_strings import StopFilter
from workers.models.cache import SequenceCache


@dataclass
class Choice:
    """One continuation of a prompt. Its cache holds the prompt and every one of its `tokens` but the last."""

    index: int
    generator: torch.Generator
    decoder: IncrementalDecoder
    stops: StopFilter
    cache: SequenceCache
    tokens: list[int] = field(default_factory=list)
    counts: Counter[int] = field(default_factory=Counter)
    """How often each token was generated."""


@dataclass
class Generation:
    """A running GenerateRequest: first its prompt fills `cache`, then its unfinished `choices` decode.

    The first `cached` of the `prefilled` prompt tokens were in the cache from the start.
    """

    request: GenerateRequest
    slot: int
    cache: SequenceCache
    cached: int = 0
    prefilled: int = 0
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    completion_tokens: int = 0

    @property
    def prefilling(self) -> bool:
        """Whether prompt tokens remain to be run."""
        return self.prefilled < len(self.request.prompt_token_ids)
