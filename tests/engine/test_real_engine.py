"""The whole engine on real weights, in this process: same words whatever the company, the memory or the drafts."""

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headgate.config.engine import BatchConfig
from headgate.engine.engine import GRAMMAR, Engine, EngineRequest, SequenceOutput
from headgate.engine.runner.llama import Model
from headgate.engine.runner.llama_runner import LlamaRunner
from headgate.model.clock import monotonic
from headgate.model.errors import InvalidRequest
from headgate.model.sampling import Sampling
from headgate.model.sequence import Sequence
from headgate.policy.batching.batch import Batcher
from headgate.policy.batching.blocks import Ledger
from headgate.policy.batching.estimate import StepTime
from tests.scripted import check_balance
from tests.scripted import sequence as scripted_sequence

pytestmark = [pytest.mark.model, pytest.mark.timeout(180)]

PROMPTS = [
    "The sea is", "Once upon a time", "def fibonacci(n):", "The capital of France is", "1, 2, 3, 4,",
    "Dear Sir or Madam,", "SELECT name FROM", "In the year 2050", "Ingredients: flour,", "Roses are red,",
    "The three laws of", "Q: What is a mutex?\nA:", "To be or not", "import numpy as np\n", "Once there was a king who",
    "The weather today is",
]  # fmt: skip


class Real:
    """An engine on the real model, with blocking calls for tests."""

    def __init__(self, model: Model, *, slots: int, context: int, kv_tokens: int, batch: BatchConfig) -> None:
        runner = LlamaRunner(model, slots=slots, slot_tokens=context, threads=2, max_batch_tokens=256)
        blocks, host = kv_tokens // 16, slots * context // 16
        ledger = Ledger(slots=slots, slot_tokens=context, blocks=blocks, host_blocks=host, block_tokens=16)
        self.batcher = Batcher(batch, ledger, StepTime())
        self.tokenizer = runner.tokenizer
        self.engine = Engine(runner, runner.tokenizer, self.batcher, monotonic, self._hear)
        self.engine.start()
        self._said: dict[int, list[SequenceOutput]] = {}
        self._changed = threading.Condition()
        self.may_fail: set[int] = set()

    def _hear(self, said: list[SequenceOutput]) -> None:
        with self._changed:
            for one in said:
                assert one.error is None or one.sequence_id in self.may_fail, one.error
                self._said.setdefault(one.sequence_id, []).append(one)
            self._changed.notify_all()

    def submit(self, number: int, text: str, max_output: int, sampling: Sampling | None = None) -> Sequence:
        tokens = self.tokenizer.encode(text)
        one = scripted_sequence(number, tokens, max_output=max_output, arrived=monotonic())
        one.sampling = sampling or Sampling(temperature=0.0, ignore_eos=True)
        self.engine.submit(EngineRequest(one))
        return one

    def wait(self, number: int, words: int | None = None) -> None:
        """Wait until a sequence has said something `words` times; None: until it has ended."""

        def true() -> bool:
            said = self._said.get(number, [])
            return bool(said and (said[-1].finish or said[-1].error)) or (words is not None and len(said) >= words)

        with self._changed:
            assert self._changed.wait_for(true, timeout=120)

    def wait_for_room(self, most: int) -> None:
        """Wait until at most this number of sequences is left. Cancels end in silence, so this looks again now and
        then."""
        with self._changed:
            for _ in range(12_000):
                if len(self.batcher.running) + len(self.batcher.waiting) <= most and self.engine._inbox.empty():
                    return
                self._changed.wait(0.01)
        raise AssertionError("they never end")

    def text(self, number: int) -> str:
        return "".join(one.text for one in self._said[number])

    def last(self, number: int) -> SequenceOutput:
        return self._said[number][-1]

    def alone(self, number: int, text: str, max_output: int) -> str:
        self.submit(number, text, max_output)
        self.wait(number)
        return self.text(number)


@pytest.fixture(scope="module")
def real(model: Model) -> Iterator[Real]:
    made = Real(model, slots=8, context=512, kv_tokens=8 * 512, batch=BatchConfig())
    yield made
    made.engine.stop()


def test_sixteen_staggered_prompts_say_what_each_says_alone(real: Real) -> None:
    lengths = [6 + 3 * (n % 5) for n in range(16)]
    alone = [real.alone(n, text, lengths[n]) for n, text in enumerate(PROMPTS)]
    for n, text in enumerate(PROMPTS):
        real.submit(100 + n, text, lengths[n])
        if n % 3 == 2:
            real.wait(100 + n - 1, words=2)  # let some of them get on before the next come
    for n in range(16):
        real.wait(100 + n)
    assert [real.text(100 + n) for n in range(16)] == alone


def test_three_hundred_with_random_cancels_leave_nothing_behind(real: Real) -> None:
    rng = random.Random(5)
    everyone = []
    for n in range(1000, 1300):
        text = f"{rng.choice(PROMPTS)} {'very ' * rng.randrange(4)}"
        everyone.append(real.submit(n, text, rng.randrange(1, 5)))
        if rng.random() < 0.6:
            real.engine.cancel(rng.choice(everyone[-24:]).id)
        if n % 50 == 49:
            real.wait_for_room(16)  # so that cancels meet waiting, prefilling and decoding sequences alike
    real.wait_for_room(0)
    assert all(one.finish is not None for one in everyone)
    assert real.engine.spent.cancels > 50
    assert real.batcher.ledger.owned_blocks == 0
    check_balance(real.batcher)


def test_an_engine_with_too_little_memory_preempts_and_every_word_is_said_once(real: Real, model: Model) -> None:
    texts = [" ".join([text] * 6) for text in PROMPTS[:5]]
    alone = [real.alone(3000 + n, text, 60) for n, text in enumerate(texts)]
    tight = Real(
        model, slots=5, context=256, kv_tokens=320, batch=BatchConfig(first_output_guess=8, headroom=0.0, draft_batch=0)
    )
    everyone = [tight.submit(n, text, 60) for n, text in enumerate(texts)]
    for n in range(5):
        tight.wait(n)
    assert tight.batcher.counts.swaps > 0
    assert sum(one.preemptions for one in everyone) > 0
    assert [tight.text(n) for n in range(5)] == alone
    assert all(one.output_len == 60 for one in everyone)
    tight.engine.stop()


def test_drafts_change_the_speed_and_not_the_text(real: Real, model: Model) -> None:
    text = "one two three four one two three four one two three four one two"
    plain = Real(model, slots=1, context=256, kv_tokens=256, batch=BatchConfig(draft_batch=0))
    eager = Real(model, slots=1, context=256, kv_tokens=256, batch=BatchConfig(draft_rest=0))
    assert eager.alone(1, text, 48) == plain.alone(1, text, 48)
    assert eager.batcher.counts.accepted > 0
    assert plain.batcher.counts.drafted == 0
    plain.engine.stop()
    eager.engine.stop()


BANNED = dict.fromkeys(range(1000), -100.0)
STUCK = ["start: <|im_end|>", 'start: "a" <|im_end|>', "start: <[2]>", "start: <[2]> <[2]>", "start: <|endoftext|>"]


def odd_settings() -> Iterator[tuple[str, Sampling]]:
    """What is left to draw from is little or nothing. With each: what it stops for."""
    more: list[dict[str, Any]] = [
        {},
        {"temperature": 0},
        {"min_tokens": 5},
        {"ignore_eos": True},
        {"logit_bias": BANNED},
        {"stop_token_ids": frozenset({0, 2})},
        {"min_tokens": 5, "ignore_eos": True, "logit_bias": BANNED, "stop_token_ids": frozenset({0, 2})},
    ]
    for settings in more:
        for grammar in STUCK:
            yield GRAMMAR, Sampling(grammar=grammar, **settings)
        for grammar in ('start: "a"', 'start: ""', "start: <|im_end|>?"):
            yield "", Sampling(grammar=grammar, **settings)
    for min_tokens in (0, 5):  # the stop token is all that the grammar takes first
        yield "", Sampling(grammar=STUCK[1], min_tokens=min_tokens, stop_token_ids=frozenset({81}))


def test_settings_that_leave_nothing_to_draw_end_their_own_sequence_only(real: Real) -> None:
    neighbour = real.alone(4000, PROMPTS[0], 40)
    real.submit(4001, PROMPTS[0], 40)
    every = list(enumerate(odd_settings(), 4100))
    for number, (_, sampling) in every:
        real.submit(number, PROMPTS[1], 8, sampling)
    hopeless = Sampling(min_tokens=5, stop_token_ids=frozenset(range(real.tokenizer.n_vocab)))
    real.may_fail.add(4002)
    real.submit(4002, PROMPTS[1], 8, hopeless)
    for number, (stop, sampling) in every:
        real.wait(number)
        assert real.last(number).stop == stop, sampling
    real.wait(4002)
    assert isinstance(real.last(4002).error, InvalidRequest)
    real.wait(4001)
    assert real.text(4001) == neighbour
    assert real.alone(4003, PROMPTS[0], 40) == neighbour
    assert real.engine.failed is None
    real.wait_for_room(0)
    check_balance(real.batcher)
