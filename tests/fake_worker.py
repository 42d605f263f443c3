"""A worker at the edge of bus and queue that computes nothing: it answers with what the test tells it to."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import redis

from app.bus import aborts, inference_requests, presence, token_streams
from app.bus.connection import connect
from app.bus.wakeups import notify_job
from app.contracts.base_models import BaseModelInfo
from app.contracts.inference import (
    AcceptedEvent,
    DoneEvent,
    EmbedEvent,
    EmbedRequest,
    ErrorEvent,
    FinishEvent,
    GenerateRequest,
    InferenceEvent,
    InferenceRequest,
    PromptEvent,
    ScoreEvent,
    TextEvent,
    TokenLogprob,
)
from app.db import queue
from app.db.repositories import workers
from app.db.session import Database
from app.text.tokenizer import tokenizer_for

Finish = Callable[[Database, Any], None]
"""Ends a claimed job, of whichever kind the test queues."""


class FakeWorker:
    """Answers generate requests with `reply`, a token at a time, and ends jobs as `finish_job` does.

    `error` fails every request with that event after `error_after` tokens; `endless` says nothing more once a request
    is taken, until it is aborted.
    """

    def __init__(self, database_url: str, redis_url: str, info: BaseModelInfo) -> None:
        self.info = info
        self.reply = "Hello there"
        self.error: ErrorEvent | None = None
        self.error_after = 0
        self.nll_per_token = 2.0
        self.cached_tokens = 0
        self.third_of_embeddings = 0.1
        self.endless = False
        self.silent = False
        self.finish_job: Finish | None = None
        self.requests: list[InferenceRequest] = []
        self.aborted: set[str] = set()
        self._database = Database(database_url)
        self._redis: redis.Redis = connect(redis_url)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "FakeWorker":
        with self._database.write() as session:
            workers.register(session, worker_id="fake", base_model=self.info.id, device="none")
        presence.announce(self._redis, "fake", self.info.id, 60)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """End the thread; requests stay unanswered from here on."""
        self._stop.set()
        self._thread.join()
        self._database.dispose()
        self._redis.close()

    def wait_until(self, condition: Callable[[], bool], seconds: float = 10) -> None:
        """Wait for something this worker will notice; fail when it does not."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "the worker never saw it"
            self._stop.wait(0.005)

    def _run(self) -> None:
        while not self._stop.is_set():
            for request in inference_requests.poll(self._redis, self.info.id, 0.05).requests:
                self.requests.append(request)
                if not self.silent:
                    self._answer(request)
            if self.finish_job:
                self._work_on_a_job(self.finish_job)

    def _work_on_a_job(self, finish: Finish) -> None:
        job = queue.claim(self._database, worker_id="fake", base_model=self.info.id, lease_seconds=60, max_attempts=3)
        if job:
            finish(self._database, job)
            notify_job(self._redis, job.lease.job_id)

    def _answer(self, request: InferenceRequest) -> None:
        self._emit(request, AcceptedEvent())
        if self.error and self.error_after == 0:
            self._emit(request, self.error)
        elif self.endless:
            self._wait_for_abort(request)
        elif isinstance(request, GenerateRequest):
            self._generate(request)
        elif isinstance(request, EmbedRequest):
            self._embed(request)
        else:
            tokens = sum(sum(sequence.loss_mask) for sequence in request.sequences)
            self._emit(request, ScoreEvent(nll=self.nll_per_token * tokens, tokens=tokens))

    def _wait_for_abort(self, request: InferenceRequest) -> None:
        while not self._stop.wait(0.01):
            if aborts.aborted(self._redis, [request.id]):
                self.aborted.add(request.id)
                return

    def _generate(self, request: GenerateRequest) -> None:
        sampling = request.sampling
        if sampling.prompt_logprobs:
            first, *rest = request.prompt_token_ids
            prompt = [self._logprob(first, None), *(self._logprob(token, sampling.logprobs) for token in rest)]
            self._emit(request, PromptEvent(logprobs=prompt))
        tokens = tokenizer_for(self.info).encode(self.reply)
        for index in range(sampling.n):
            for count, token in enumerate(tokens[: sampling.max_tokens]):
                if self.error and count == self.error_after:
                    self._emit(request, self.error)
                    return
                logprobs = [] if sampling.logprobs is None else [self._logprob(token, sampling.logprobs)]
                text = tokenizer_for(self.info).token(token)
                self._emit(request, TextEvent(index=index, text=text, logprobs=logprobs))
            reason = "length" if len(tokens) > sampling.max_tokens else "stop"
            self._emit(request, FinishEvent(index=index, reason=reason))
        done = min(len(tokens), sampling.max_tokens) * sampling.n
        prompt = len(request.prompt_token_ids)
        self._emit(request, DoneEvent(prompt_tokens=prompt, completion_tokens=done, cached_tokens=self.cached_tokens))

    def _embed(self, request: EmbedRequest) -> None:
        """Tell each input's length and first token, the last input first; the third number is no short decimal."""
        for index, token_ids in reversed(list(enumerate(request.sequences))):
            third = self.third_of_embeddings
            self._emit(request, EmbedEvent(index=index, vector=[len(token_ids), token_ids[0], third]))
        tokens = sum(map(len, request.sequences))
        self._emit(request, DoneEvent(prompt_tokens=tokens, completion_tokens=0))

    def _logprob(self, token: int, top: int | None) -> TokenLogprob:
        """Every token has probability a half, the next one in the vocabulary a quarter."""
        tokenizer = tokenizer_for(self.info)
        if top is None:
            return TokenLogprob(token_id=token, token=tokenizer.token(token), logprob=None, top=[])
        best = [(token, tokenizer.token(token), -0.69), (token ^ 1, tokenizer.token(token ^ 1), -1.39)][:top]
        return TokenLogprob(token_id=token, token=tokenizer.token(token), logprob=-0.69, top=best)

    def _emit(self, request: InferenceRequest, event: InferenceEvent) -> None:
        token_streams.emit(self._redis, request.id, [event])
