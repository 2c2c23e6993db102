"""The driver around Batcher and Runner, with a scripted model: what is said, when it ends, what is left."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from headgate.config.engine import BatchConfig
from headgate.engine.engine import Engine, EngineRequest, SequenceOutput
from headgate.model.clock import monotonic
from headgate.model.errors import EngineFailed, InvalidRequest, QueueFull
from headgate.model.sampling import Sampled, Sampling
from headgate.model.sequence import Finish, Sequence
from headgate.model.step import Step
from headgate.policy.batching.batch import Batcher
from tests.scripted import ScriptedRunner, batcher, reply, sequence


class Letters:
    """Tokens 0–49 are the letters a–z over and over, in two bytes where that tests more."""

    eog = frozenset({13})

    def piece(self, token: int) -> bytes:
        return f"{chr(97 + token % 26)}{'é' if token % 7 == 0 else ''}".encode()


def spoken(tokens: list[int]) -> str:
    return b"".join(Letters().piece(token) for token in tokens if token != 13).decode()


@dataclass
class Runner(ScriptedRunner):
    model_s: float = 0.0
    gate: threading.Semaphore | None = None
    breaks: bool = False
    refuses: set[int] = field(default_factory=set)
    was_shut_down: bool = False

    def open(self, sequence: Sequence) -> None:
        if sequence.id in self.refuses:
            raise InvalidRequest("no such grammar", param="response_format")
        super().open(sequence)

    def run(self, step: Step) -> list[Sampled]:
        if self.gate is not None:
            self.gate.acquire()
        if self.breaks:
            raise RuntimeError("the library fell over")
        return super().run(step)

    def shutdown(self) -> None:
        self.was_shut_down = True


class Harness:
    """An engine whose sink remembers everything and lets a test wait for what it needs."""

    def __init__(self, batch: Batcher, runner: Runner) -> None:
        self.batch, self.runner = batch, runner
        self.said: list[SequenceOutput] = []
        self._changed = threading.Condition()
        self.engine = Engine(runner, Letters(), batch, monotonic, self._hear)

    def _hear(self, said: list[SequenceOutput]) -> None:
        with self._changed:
            self.said += said
            self._changed.notify_all()

    def until(self, true: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(true, timeout=10)

    def ended(self, *ids: int) -> dict[int, SequenceOutput]:
        self.until(lambda: set(ids) <= {s.sequence_id for s in self.said if s.finish or s.error})
        return {s.sequence_id: s for s in self.said if s.finish or s.error}

    def text(self, number: int) -> str:
        return "".join(s.text for s in self.said if s.sequence_id == number)


@pytest.fixture
def harness() -> Iterator[Harness]:
    made = Harness(batcher(BatchConfig(draft_rest=2)), Runner())
    made.engine.start()
    yield made
    made.engine.stop()


def test_what_is_said_is_the_text_of_the_tokens(harness: Harness) -> None:
    harness.engine.submit(EngineRequest(sequence(1, range(40), max_output=30)))
    last = harness.ended(1)[1]
    tokens = reply(range(40), 30)
    until_end = tokens[: tokens.index(13) + 1] if 13 in tokens else tokens
    assert harness.text(1) == spoken(until_end)
    assert last.finish is (Finish.STOP if 13 in tokens else Finish.LENGTH)
    assert sum(len(s.tokens) for s in harness.said) == len(until_end)


def test_the_last_word_carries_the_timings(harness: Harness) -> None:
    harness.engine.submit(EngineRequest(sequence(1, range(40), max_output=5, arrived=monotonic())))
    last = harness.ended(1)[1]
    assert last.timings is not None
    assert last.timings.prefill_chunks == 1
    assert min(last.timings.queue_ms, last.timings.prefill_ms, last.timings.decode_ms) >= 0
    assert all(s.timings is None for s in harness.said[:-1])


def test_end_of_generation_is_ignored_where_asked() -> None:
    made = Harness(batcher(), Runner())
    one = sequence(1, prompt_that_says_13(), max_output=30)
    one.sampling = Sampling(ignore_eos=True)
    made.engine.start()
    made.engine.submit(EngineRequest(one))
    assert made.ended(1)[1].finish is Finish.LENGTH
    made.engine.stop()


def prompt_that_says_13() -> list[int]:
    return next([n] * 5 for n in range(50) if 13 in reply([n] * 5, 30))


def test_a_stop_string_ends_it_before_the_stop_even_across_tokens(harness: Harness) -> None:
    prompt = next([n] * 5 for n in range(50) if 13 not in reply([n] * 5, 30))
    whole = spoken(reply(prompt, 30))
    stop = whole[6:9]
    harness.engine.submit(EngineRequest(sequence(1, prompt, max_output=30), stops=(stop,)))
    assert harness.ended(1)[1].finish is Finish.STOP
    assert harness.text(1) == whole[: whole.index(stop)]
    assert harness.batch.ledger.owned_blocks == 0


def test_many_at_once_say_what_each_says_alone(harness: Harness) -> None:
    prompts = {n: [n, n + 1, *range(n % 5 * 10)] for n in range(30)}
    for number, prompt in prompts.items():
        harness.engine.submit(EngineRequest(sequence(number, prompt, max_output=25)))
    harness.ended(*prompts)
    for number, prompt in prompts.items():
        tokens = reply(prompt, 25)
        assert harness.text(number) == spoken(tokens[: tokens.index(13)] if 13 in tokens else tokens)
    assert harness.runner.open_ids == set()


def test_a_cancelled_sequence_is_gone_by_the_next_step_and_says_no_more() -> None:
    made = Harness(batcher(), Runner(gate=threading.Semaphore(0)))
    gate = made.runner.gate
    assert gate is not None
    made.engine.start()
    made.engine.submit(EngineRequest(sequence(1, [1, 2, 3], max_output=50)))
    made.engine.submit(EngineRequest(sequence(2, [4, 5, 6], max_output=5)))
    gate.release(2)
    made.until(lambda: sum(s.sequence_id == 1 for s in made.said) == 2)
    made.engine.cancel(1)
    gate.release(50)
    made.ended(2)
    # The step that was running when the cancel came may still have spoken.
    assert sum(s.sequence_id == 1 for s in made.said) <= 3
    assert (made.batch.running, made.batch.ledger.owned_blocks, made.runner.open_ids) == ({}, 0, set())
    assert made.engine.spent.cancels == 1
    made.engine.cancel(1)  # again, and of one that never was: nothing happens
    made.engine.cancel(77)
    made.engine.stop()


def test_a_bad_grammar_and_a_full_queue_are_answered_with_their_errors() -> None:
    made = Harness(batcher(BatchConfig(queue_limit=1)), Runner(gate=threading.Semaphore(0), refuses={1}))
    gate = made.runner.gate
    assert gate is not None
    made.engine.start()
    for number in range(1, 9):
        made.engine.submit(EngineRequest(sequence(number, [1, 2, 3])))
    gate.release(100)
    ended = made.ended(*range(1, 9))
    assert isinstance(ended[1].error, InvalidRequest)
    assert sum(isinstance(said.error, QueueFull) for said in ended.values()) >= 1
    assert made.runner.open_ids == set()
    made.engine.stop()


def test_when_the_model_library_fails_everyone_hears_it_and_nothing_runs_on() -> None:
    made = Harness(batcher(), Runner(breaks=True))
    made.engine.start()
    made.engine.submit(EngineRequest(sequence(1, [1, 2, 3])))
    error = made.ended(1)[1].error
    assert isinstance(error, EngineFailed)
    assert "the library fell over" in error.message
    assert made.engine.failed is error
    made.engine.stop()
    assert made.runner.was_shut_down


def test_stopping_ends_open_sequences_with_an_error() -> None:
    made = Harness(batcher(), Runner(gate=threading.Semaphore(1)))
    made.engine.start()
    made.engine.submit(EngineRequest(sequence(1, [1, 2, 3], max_output=50)))
    made.until(lambda: bool(made.said))
    stopper = threading.Thread(target=made.engine.stop)
    stopper.start()
    assert made.runner.gate is not None
    made.runner.gate.release(100)
    stopper.join()
    assert isinstance(made.ended(1)[1].error, EngineFailed)


def test_a_pinned_prompt_stays_in_the_prefix_cache(harness: Harness) -> None:
    prompt = list(range(48))
    harness.engine.submit(EngineRequest(sequence(1, prompt, max_output=1), pin=True))
    harness.ended(1)
    for number in range(2, 12):
        harness.engine.submit(EngineRequest(sequence(number, [number] * 60, max_output=1)))
    harness.ended(*range(2, 12))
    again = sequence(99, [*prompt, 1, 2], max_output=1)
    harness.engine.submit(EngineRequest(again))
    harness.ended(99)
    assert again.cached == 48
