"""Runs inference requests together: admits them, steps them all in one packed pass, and says what came out.

Knows the model, slots and requests; knows nothing of Redis, the database, HTTP or training. One step is bounded (a
token per choice, one chunk of prompts, one slice of what is only read), so that a caller can do other work in between.
"""

from collections import defaultdict
from collections.abc import Collection

from torch import Tensor

from app.contracts.base_models import BaseModelInfo
from app.contracts.inference import (
    AcceptedEvent,
    DoneEvent,
    ErrorEvent,
    FinishEvent,
    GenerateRequest,
    InferenceEvent,
    InferenceRequest,
    PromptEvent,
)
from app.text.tokenizer import tokenizer_for
from workers.inference.adapter_cache import AdapterCache, AdapterUnavailableError, NoRoomError
from workers.inference.checks import problem_with, too_large
from workers.inference.decoding import extend, open_choices
from workers.inference.forward import Piece, Rows, logits_of, next_pieces, run_pieces
from workers.inference.logprobs import first_token, token_logprobs
from workers.inference.prefixes import PrefixStore, prefix_key
from workers.inference.reading import Reading, open_reading
from workers.inference.scheduler import Limits, Scheduler
from workers.inference.state import Choice, Generation
from workers.inference.state_memory import state_bytes
from workers.inference.step_tokens import StepTokens, step_tokens
from workers.models.language_model import LanguageModel

Emissions = dict[str, list[InferenceEvent]]
"""New events by request id."""
WAITING_PER_PLACE = 4
LOAD_WAIT_SECONDS = 0.01
"""How long a step waits for an adapter when nothing else runs."""


class Engine:
    """Continuous batching over tenants on one model."""

    def __init__(
        self,
        model: LanguageModel,
        info: BaseModelInfo,
        adapters: AdapterCache,
        prefixes: PrefixStore,
        *,
        limits: Limits,
        tokens: StepTokens | None = None,
    ) -> None:
        """Choices and their states run within `limits`; what could never do so is refused.

        A step takes at most so many `tokens`, by default what suits the model's device.
        """
        self._model = model
        self._info = info
        self._tokenizer = tokenizer_for(info)
        self._adapters = adapters
        self._prefixes = prefixes
        self._tokens = tokens or step_tokens(model.device.type)
        self._scheduler = Scheduler(limits)
        self._running: dict[str, Generation | Reading] = {}
        self._aborted: set[str] = set()
        self._refused: Emissions = {}

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._running or self._refused or self._scheduler.waiting_ids())

    @property
    def request_ids(self) -> list[str]:
        """The ids of all requests that wait or run."""
        return [*self._running, *self._scheduler.waiting_ids()]

    @property
    def places(self) -> int:
        """How many sequences run at once."""
        return self._scheduler.limits.places

    @property
    def free_places(self) -> int:
        """How many more sequences could run now."""
        return self.places - self._scheduler.used_places

    @property
    def has_room(self) -> bool:
        """Whether more requests should be taken in; beyond this they are better off in the shared queue."""
        return len(self._scheduler.waiting_ids()) < WAITING_PER_PLACE * self._scheduler.limits.places

    def submit(self, request: InferenceRequest) -> None:
        """Let a request wait for its turn; an impossible one ends at the next step."""
        limits = self._scheduler.limits
        problem = problem_with(request, self._info, limits.places)
        bytes_each = 0 if problem else state_bytes(self._model, request, self._tokens.read)
        problem = problem or too_large(request, bytes_each, limits)
        if problem:
            self._refused[request.id] = [problem]
        else:
            self._scheduler.add(request, bytes_each)
            self._adapters.prefetch(request.adapter)

    def abort(self, request_ids: Collection[str]) -> None:
        """Forget requests at the next step, without any further event."""
        self._aborted.update(request_ids)

    def fail_all(self, error: ErrorEvent) -> Emissions:
        """End every request with `error`."""
        ids = self.request_ids
        for request_id in ids:
            self._remove(request_id)
        return {request_id: [error] for request_id in ids}

    def step(self) -> Emissions:
        """Do one bounded piece of work for everyone and return the new events."""
        out: Emissions = defaultdict(list, self._refused)
        self._refused = {}
        for request_id in self._aborted:
            self._remove(request_id)
        self._aborted.clear()
        self._admit(out)
        generations = [running for running in self._running.values() if isinstance(running, Generation)]
        decoding = any(not generation.prefilling for generation in generations)
        pieces = next_pieces(generations, self._tokens.beside if decoding else self._tokens.prompts)
        if pieces:
            for piece, rows in zip(pieces, run_pieces(self._model, pieces), strict=True):
                self._take(piece, rows, out)
        self._read(out)
        if not out and not self._running:
            self._adapters.wait(LOAD_WAIT_SECONDS)
        return out

    def _admit(self, out: Emissions) -> None:
        passed_over: set[str] = set()
        while (request := self._scheduler.pick(passed_over)) is not None:
            try:
                slot = self._adapters.acquire(request.adapter)
            except AdapterUnavailableError as error:
                event = ErrorEvent(status=error.status, code=error.code, message=error.message)
                for request_id in self._scheduler.waiting_with(request):
                    self._scheduler.remove(request_id)
                    out[request_id].append(event)
                continue
            except NoRoomError:
                return
            if slot is None:
                passed_over.add(request.id)
                continue
            self._scheduler.start(request)
            out[request.id].append(AcceptedEvent())
            if isinstance(request, GenerateRequest):
                self._start(request, slot, out)
            else:
                self._running[request.id] = open_reading(request, self._model, slot, self._tokens.read)

    def _start(self, request: GenerateRequest, slot: int, out: Emissions) -> None:
        capacity = len(request.prompt_token_ids) + request.sampling.max_tokens
        # Log-probabilities of the prompt need all its rows.
        whole = request.sampling.prompt_logprobs
        prefix = None if whole else self._prefixes.find(prefix_key(request), request.prompt_token_ids)
        if prefix is None:
            self._running[request.id] = Generation(request, slot, self._model.new_cache(capacity))
            return
        cache = prefix.cache.at(prefix.length, capacity)
        generation = Generation(request, slot, cache, cached=prefix.length, prefilled=prefix.length)
        self._running[request.id] = generation
        if prefix.hidden_D is not None and not generation.prefilling:
            self._open(generation, logits_of(self._model, prefix.hidden_D, slot), out)

    def _remove(self, request_id: str) -> None:
        self._scheduler.remove(request_id)
        running = self._running.pop(request_id, None)
        if running is not None:
            self._adapters.release(running.request.adapter)

    def _take(self, piece: Piece, rows: Rows, out: Emissions) -> None:
        generation = piece.generation
        if piece.choice is not None:
            self._extend(generation, piece.choice, rows.logits_RV[-1], out)
            return
        generation.prefilled += len(piece.token_ids)
        self._note_prompt(piece, rows.logits_RV)
        if piece.ends_prompt:
            request = generation.request
            # A template may write the answer differently than it was generated: what comes before it stays the same.
            self._prefixes.keep(prefix_key(request), request.prompt_token_ids, generation.cache, rows.hidden_RD[-1])
            self._open(generation, rows.logits_RV[-1], out)

    def _open(self, generation: Generation, logits_V: Tensor, out: Emissions) -> None:
        request = generation.request
        if request.sampling.prompt_logprobs:
            out[request.id].append(PromptEvent(logprobs=generation.prompt_logprobs))
        if request.sampling.max_tokens == 0:
            out[request.id] += [FinishEvent(index=index, reason="length") for index in range(request.sampling.n)]
            self._done(generation, out)
            return
        generation.choices = open_choices(generation, self._tokenizer)
        for choice in list(generation.choices):
            self._extend(generation, choice, logits_V, out)

    def _note_prompt(self, piece: Piece, logits_RV: Tensor) -> None:
        generation = piece.generation
        sampling = generation.request.sampling
        if not sampling.prompt_logprobs:
            return
        prompt = generation.request.prompt_token_ids
        if piece.start == 0:
            generation.prompt_logprobs.append(first_token(prompt[0], self._tokenizer))
        predicted = prompt[piece.start + 1 : piece.start + 1 + len(piece.token_ids)]
        generation.prompt_logprobs += token_logprobs(
            logits_RV[: len(predicted)], predicted, sampling.logprobs or 0, self._tokenizer
        )

    def _extend(self, generation: Generation, choice: Choice, logits_V: Tensor, out: Emissions) -> None:
        request_id = generation.request.id
        events, ended = extend(generation, choice, logits_V, self._tokenizer)
        out[request_id] += events
        if not ended:
            return
        if generation.request.sampling.n == 1:
            token_ids = [*generation.request.prompt_token_ids, *choice.tokens[:-1]]
            self._prefixes.keep(prefix_key(generation.request), token_ids, choice.cache, None)
        generation.choices.remove(choice)
        self._scheduler.shrink(request_id, len(generation.choices))
        if not generation.choices:
            self._done(generation, out)

    def _done(self, generation: Generation, out: Emissions) -> None:
        out[generation.request.id].append(
            DoneEvent(
                prompt_tokens=len(generation.request.prompt_token_ids),
                completion_tokens=generation.completion_tokens,
                cached_tokens=generation.cached,
            )
        )
        self._remove(generation.request.id)

    def _read(self, out: Emissions) -> None:
        reading = next((running for running in self._running.values() if not isinstance(running, Generation)), None)
        if reading is None:
            return
        request_id = reading.request.id
        events, ended = reading.advance()
        out[request_id] += events
        if ended:
            self._remove(request_id)
        else:
            # Behind the others that read: they take turns.
            self._running[request_id] = self._running.pop(request_id)
