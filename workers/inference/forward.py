"""One packed forward pass over everything that runs: a token per decoding choice and chunks of waiting prompts.

Knows packing and caches; knows nothing of sampling, text or events.

Legend: T packed tokens, R rows whose logits are wanted, D width, V vocabulary.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from workers.inference.state import Choice, Generation
from workers.models.batch import pack
from workers.models.cache import SequenceCache
from workers.models.language_model import LanguageModel


@dataclass(frozen=True)
class Piece:
    """Some tokens of one sequence: the last token of `choice`, or, if that is None, a chunk of the prompt."""

    generation: Generation
    choice: Choice | None
    cache: SequenceCache
    token_ids: Sequence[int]
    start: int
    """Position of the first token."""

    @property
    def ends_prompt(self) -> bool:
        """Whether the prompt is complete after this piece."""
        return self.choice is None and self.start + len(self.token_ids) == len(self.generation.request.prompt_token_ids)

    @property
    def rows_wanted(self) -> int:
        """How many of the last rows need logits."""
        if self.choice is None and self.generation.request.sampling.prompt_logprobs:
            return len(self.token_ids)
        return 1 if self.choice is not None or self.ends_prompt else 0


def next_pieces(generations: Iterable[Generation], prefill_tokens: int) -> list[Piece]:
    """Return the next piece of every sequence that decodes, and of prompts as far as `prefill_tokens` go.

    Those of a slot are neighbours, so that its rows are multiplied together.
    """
    pieces: list[Piece] = []
    prompts: list[Generation] = []
    for generation in generations:
        if generation.prefilling:
            prompts.append(generation)
            continue
        prompt = len(generation.request.prompt_token_ids)
        pieces += [
            Piece(generation, choice, choice.cache, choice.tokens[-1:], prompt + len(choice.tokens) - 1)
            for choice in generation.choices
        ]
    for generation, start, stop in _chunks(prompts, prefill_tokens):
        chunk = generation.request.prompt_token_ids[start:stop]
        pieces.append(Piece(generation, None, generation.cache, chunk, start))
    return sorted(pieces, key=lambda piece: piece.generation.slot)


def _chunks(prompts: list[Generation], tokens: int) -> Iterator[tuple[Generation, int, int]]:
    """Yield which part of which prompts to run, of `tokens` tokens together.

    The oldest prompt gets half of them at least, so that it ends; the others follow by what they lack, so that a short
    one does not wait for a long one.
    """
    sizes = [0] * len(prompts)
    missing = [len(prompt.request.prompt_token_ids) - prompt.prefilled for prompt in prompts]
    by_need = sorted(range(len(prompts)), key=missing.__getitem__)
    turns = [(0, (tokens + 1) // 2), *((number, tokens) for number in by_need)]
    for number, most in turns if prompts else []:
        size = min(most, tokens, missing[number] - sizes[number])
        sizes[number] += size
        tokens -= size
    for prompt, size in zip(prompts, sizes, strict=True):
        if size:
            yield prompt, prompt.prefilled, prompt.prefilled + size


class Rows(NamedTuple):
    """The wanted rows of a piece, its last ones: final hidden states and fp32 logits."""

    hidden_RD: Tensor
    logits_RV: Tensor


def run_pieces(model: LanguageModel, pieces: Sequence[Piece]) -> list[Rows]:
    """Run the pieces together, filling their caches; return the wanted rows of each."""
    with torch.no_grad():
        batch = pack(
            [piece.token_ids for piece in pieces],
            [piece.generation.slot for piece in pieces],
            model.device,
            starts=[piece.start for piece in pieces],
        )
        hidden_TD = model.hidden(batch, caches=[piece.cache for piece in pieces])
        ends = batch.cu_seqlens[1:]
        wanted = [row for piece, end in zip(pieces, ends, strict=True) for row in range(end - piece.rows_wanted, end)]
        if not wanted:
            return [Rows(hidden_TD[:0], hidden_TD[:0]) for _ in pieces]
        slots = [piece.generation.slot for piece in pieces for _ in range(piece.rows_wanted)]
        hidden_RD = hidden_TD[torch.tensor(wanted, device=hidden_TD.device)]
        logits_RV = model.logits(hidden_RD, slots)
    sizes = [piece.rows_wanted for piece in pieces]
    return [Rows(*rows) for rows in zip(hidden_RD.split(sizes), logits_RV.split(sizes), strict=True)]


@torch.no_grad()
def logits_of(model: LanguageModel, hidden_D: Tensor, slot: int) -> Tensor:
    """Return the fp32 logits [V] of a final hidden state."""
    return model.logits(hidden_D[None], [slot])[0]
