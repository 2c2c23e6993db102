"""Runs a model around the Batcher, on a thread of its own.

The event loop hands over sequences and cancels through one inbox and receives, once per step, the output of every
sequence. The Batcher chooses, the Runner computes; this module carries steps from one to the other and turns tokens
into text.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol

from headgate.engine.bound import TIME, Bound, Bounds
from headgate.engine.text import TextStream
from headgate.model.clock import Clock
from headgate.model.errors import EngineFailed, QueueFull, ServeError
from headgate.model.sampling import Sampled, TokenLogprob
from headgate.model.sequence import Finish, Sequence
from headgate.model.step import Step
from headgate.policy.batching.batch import Batcher, BatchRefusal
from headgate.policy.batching.ledger import Short


class Runner(Protocol):
    """Computes a step: a real model, a scripted one, or a step-time model."""

    @property
    def slots(self) -> int: ...
    @property
    def bytes_per_token(self) -> int:
        """KV memory of one token, in bytes."""

    @property
    def model_s(self) -> float:
        """Seconds spent inside the model library so far."""

    def open(self, sequence: Sequence) -> None:
        """Prepares to sample for a sequence. Raises InvalidRequest if its sampling settings make no sense."""

    def attend(self, sequence_id: int) -> None:
        """Reports the probabilities of this sequence's tokens from now on, if the runner knows them."""

    def close(self, sequence_id: int) -> None: ...
    def run(self, step: Step) -> list[Sampled]:
        """Carries out the moves, computes the rows, and draws a token for every row that samples."""

    def shutdown(self) -> None: ...


class Vocabulary(Protocol):
    def piece(self, token: int) -> bytes: ...
    @property
    def eog(self) -> frozenset[int]:
        """Tokens that end a generation."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A sequence and its settings, as the server hands them to the engine."""

    sequence: Sequence
    stops: tuple[str, ...] = ()
    pin: bool = False
    """Keep the prompt in the prefix cache for good."""
    bounds: Bounds | None = None
    """None: the sequence ends by itself, at a stop string or at its maximum length."""
    compiled: object = None
    """The compiled grammar, referenced here so that it still exists when the sequence is opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Where one sequence's milliseconds went. Tokenizing happens before, in the server."""

    queue_ms: float
    prefill_ms: float
    decode_ms: float
    detokenize_ms: float
    cached_tokens: int
    prefill_chunks: int
    preemptions: int
    yields: int


@dataclass(frozen=True, slots=True)
class SequenceOutput:
    """The output of one sequence in one step."""

    sequence_id: int
    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: Finish | None = None
    timings: Timings | None = None
    """Set in the last output only."""
    stop: str = ""
    """Set in the last output: why the sequence was ended early, `repetition`, `time` or `grammar`; empty: it was
    not."""
    error: ServeError | None = None
    """The error that ended the sequence; nothing follows. None: no error."""


GRAMMAR = "grammar"
"""Stop reason of a sequence whose grammar can't be followed any further."""
Sink = Callable[[list[SequenceOutput]], None]
OnStep = Callable[[Step, float, float, float], None]
"""Called after a step with: the step, when it began, the seconds it took, and the seconds of those spent in the
runner."""


@dataclass(slots=True)
class _Life:
    """The engine's state of one sequence, beside the Batcher's."""

    ask: EngineRequest
    text: TextStream
    bound: Bound | None
    detokenize_s: float = 0.0
    stop: str = ""
    error: ServeError | None = None


@dataclass(frozen=True, slots=True)
class _Cancel:
    sequence_id: int


@dataclass(frozen=True, slots=True)
class _Forget:
    done: Future[None]


class _Stop: ...


@dataclass(slots=True)
class Spent:
    """Time that the engine thread spent working, in seconds, and what it handled."""

    step_s: float = 0.0
    """Whole steps: choosing, moving, computing, sampling, detokenizing, handing over."""
    longest_step_s: float = 0.0
    cancels: int = 0
    lives: int = 0
    """Sequences accepted so far."""


class Engine:
    def __init__(self, runner: Runner, vocabulary: Vocabulary, batcher: Batcher, clock: Clock, sink: Sink) -> None:
        self.runner = runner
        self.batcher = batcher
        self.spent = Spent()
        self.failed: ServeError | None = None
        self._on_step: tuple[OnStep, ...] = ()
        self._vocabulary = vocabulary
        self._clock = clock
        self._sink = sink
        self._inbox: SimpleQueue[EngineRequest | _Cancel | _Forget | _Stop] = SimpleQueue()
        self._lives: dict[int, _Life] = {}
        self._forgets: list[Future[None]] = []
        """Calls of `forget_cached` that wait until nothing runs."""
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)

    def report_steps_to(self, on_step: OnStep) -> None:
        """Calls `on_step` too after every step, on the engine's thread. Call it before `start`."""
        self._on_step += (on_step,)

    # -- from any thread ------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def submit(self, ask: EngineRequest) -> None:
        if self.failed is not None:
            self._sink([SequenceOutput(ask.sequence.id, "", error=self.failed)])
        else:
            self._inbox.put(ask)

    def cancel(self, sequence_id: int) -> None:
        """Cancels a sequence. The sequence and its memory are gone by the next step, and the sink receives no more of
        it."""
        self._inbox.put(_Cancel(sequence_id))

    def forget_cached(self) -> Future[None]:
        """Forgets all cached prefixes as soon as no sequence is there. The future is done then, or when the engine has
        ended."""
        done: Future[None] = Future()
        if self.failed is None:
            self._inbox.put(_Forget(done))
        else:
            done.set_result(None)
        return done

    def stop(self) -> None:
        """Ends the thread after the current step. Open sequences end with an error."""
        self._inbox.put(_Stop())
        if self._thread.is_alive():
            self._thread.join()

    # -- the engine thread ----------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            while self._take_mail():
                began = self._clock()
                step = self.plan(began)
                if step is not None:
                    ran = self._run(step)
                    took = self.step_s(self._clock() - began)
                    self.spent.step_s += took
                    self.spent.longest_step_s = max(self.spent.longest_step_s, took)
                    for report in self._on_step:
                        report(step, began, took, ran)
                if self._forgets and not self.batcher.has_work:
                    self.batcher.forget_cached()
                    self._let_go()
        except Exception as error:  # a model library's failure leaves its memory in doubt: nothing may run on it
            self.failed = error if isinstance(error, ServeError) else EngineFailed(f"the engine failed: {error!r}")
        else:
            self.failed = EngineFailed("the engine was stopped")
        gone, self._lives = list(self._lives), {}
        while not self._inbox.empty():
            match self._inbox.get():
                case EngineRequest(sequence):
                    gone.append(sequence.id)
                case _Forget(done):
                    self._forgets.append(done)
        self._let_go()
        self._sink([SequenceOutput(sequence_id, "", error=self.failed) for sequence_id in gone])
        self.runner.shutdown()

    def _let_go(self) -> None:
        """Answers those who wait until prefixes are forgotten."""
        forgets, self._forgets = self._forgets, []
        for done in forgets:
            if done.set_running_or_notify_cancel():
                done.set_result(None)

    def plan(self, now: float) -> Step | None:
        """Returns the next step; None: there is nothing to do."""
        return self.batcher.plan(now)

    def step_s(self, seconds: float) -> float:
        """Returns how long the latest step took, of which this engine's thread saw `seconds`."""
        return seconds

    def _take_mail(self) -> bool:
        """Handles everything in the inbox; waits for an entry if there is no other work. Returns False to stop."""
        idle = not self.batcher.has_work and not self._forgets
        try:
            while True:
                match self._inbox.get(block=idle):
                    case EngineRequest() as ask:
                        self._open(ask)
                    case _Cancel(sequence_id):
                        self._cancel(sequence_id)
                    case _Forget(done):
                        self._forgets.append(done)
                    case _:
                        return False
                idle = False
        except Empty:
            return True

    def _open(self, ask: EngineRequest) -> None:
        sequence = ask.sequence
        try:
            self.runner.open(sequence)
        except ServeError as error:
            self._sink([SequenceOutput(sequence.id, "", error=error)])
            return
        refused = self.batcher.add(sequence)
        if isinstance(refused, BatchRefusal):
            self.runner.close(sequence.id)
            self._sink([SequenceOutput(sequence.id, "", error=QueueFull(refused.reason))])
            return
        bound = None if ask.bounds is None else Bound(ask.bounds)
        text = TextStream(ask.stops, sequence.sampling.min_tokens - sequence.continued)
        self._lives[sequence.id] = _Life(ask, text, bound)
        self.spent.lives += 1

    def _cancel(self, sequence_id: int) -> None:
        if self.batcher.cancel(sequence_id, self._clock()) is not None:
            self._close(sequence_id)
            self.spent.cancels += 1

    def _close(self, sequence_id: int) -> None:
        self.runner.close(sequence_id)
        del self._lives[sequence_id]

    def _run(self, step: Step) -> float:
        """Runs a step and returns the seconds spent in the runner."""
        began = self._clock()
        sampled = self.runner.run(step)
        now = self._clock()
        said: list[SequenceOutput] = []
        kept: list[Sampled] = []
        stopped: list[int] = []
        for one in sampled:
            life, spoke = self._lives[one.sequence_id], self._clock()
            tokens, text, stop = self._speak(life, one)
            life.detokenize_s += self._clock() - spoke
            if life.bound is not None and not stop:
                life.stop = life.bound.judge(text, one.chances, life.ask.sequence.first_token_at, now)
                if life.bound.doubts and not one.chances:
                    self.runner.attend(one.sequence_id)
            if one.stuck:
                life.stop = GRAMMAR
            life.error = one.error
            if stop or life.stop or life.error:
                stopped.append(one.sequence_id)
            kept.append(Sampled(one.sequence_id, tokens))
            said.append(SequenceOutput(one.sequence_id, text, tokens, one.logprobs[: len(tokens)]))
        slots = {row.sequence.id: row.slot for row in step.rows}
        ended = {s.id: s for s in self.batcher.done(step, kept, frozenset(stopped), now, self.step_s(now - began))}
        for index, one_said in enumerate(said):
            if (sequence := ended.get(one_said.sequence_id)) is not None:
                said[index] = self._last(sequence, one_said, slots[sequence.id], now)
        if said:
            self._sink(said)
        return now - began

    def _speak(self, life: _Life, one: Sampled) -> tuple[tuple[int, ...], str, bool]:
        """Returns the tokens up to a stop, the text that may be sent for them, and whether there was a stop."""
        text, sampling = "", life.ask.sequence.sampling
        for index, token in enumerate(one.tokens):
            if token in self._vocabulary.eog and (not sampling.ignore_eos or sampling.grammar is not None):
                return one.tokens[: index + 1], text, True
            if token in sampling.stop_token_ids:
                return one.tokens[: index + 1], text, True
            text += life.text.push(self._vocabulary.piece(token))
            if life.text.stopped is not None:
                return one.tokens[: index + 1], text, True
        return one.tokens, text, False

    def _last(self, sequence: Sequence, said: SequenceOutput, slot: int, now: float) -> SequenceOutput:
        life = self._lives[sequence.id]
        text = said.text + life.text.finish()
        self._close(sequence.id)
        if life.error is not None:
            return SequenceOutput(said.sequence_id, "", error=life.error)
        if life.ask.pin and isinstance(short := self.batcher.pin(slot, now), Short):
            tokens = short.blocks * self.batcher.ledger.block_tokens
            return SequenceOutput(
                said.sequence_id, "", error=EngineFailed(f"{tokens} tokens of host memory too few to pin it")
            )
        finish = Finish.LENGTH if life.stop in (TIME, GRAMMAR) else sequence.finish
        told = timings(sequence, life, now)
        return SequenceOutput(said.sequence_id, text, said.tokens, said.logprobs, finish, told, life.stop)


def timings(sequence: Sequence, life: _Life, now: float) -> Timings:
    admitted = sequence.arrived if sequence.admitted_at is None else sequence.admitted_at
    first = admitted if sequence.first_token_at is None else sequence.first_token_at
    return Timings(
        queue_ms=(admitted - sequence.arrived) * 1e3,
        prefill_ms=(first - admitted) * 1e3,
        decode_ms=(now - first) * 1e3,
        detokenize_ms=life.detokenize_s * 1e3,
        cached_tokens=sequence.cached,
        prefill_chunks=sequence.chunks,
        preemptions=sequence.preemptions,
        yields=sequence.yields,
    )
