import math
from collections import Counter
from collections.abc import Callable
from time import thread_time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headgate.engine.runner.sampler import Logits, Sampler, _kept, _passed, choose, logprobs, uniform
from headgate.model.errors import EngineFailed
from headgate.model.sampling import Sampling


def sampler(sampling: Sampling, tokens: list[int] | None = None, prompt_len: int = 0) -> Sampler:
    return Sampler(sampling, tokens or [], prompt_len, eog=[0])


def row(*values: float) -> Logits:
    return np.array(values, np.float32)


def kept_by_full_sort(weights: Logits, top_k: int, top_p: float) -> list[int]:
    """What `_kept` promises, without a shortcut."""
    order = np.argsort(-weights, kind="stable")[: int((weights > 0).sum())][: top_k or None]
    mass = np.cumsum(weights[order], dtype=np.float64)
    total = float(mass[-1]) if top_k else float(weights.sum(dtype=np.float64))
    if top_p < 1:
        order = order[: int(np.searchsorted(mass, top_p * total)) + 1]
    return sorted(order.tolist())


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    size=st.sampled_from([1, 5, 900, 20_000]),
    spread=st.sampled_from([0.0, 0.1, 1.0, 4.0, 30.0]),
    grain=st.sampled_from([0.0, 0.5]),
    top_k=st.sampled_from([0, 0, 1, 40, 1500, 50_000]),
    top_p=st.sampled_from([1.0, 0.01, 0.5, 0.95, 0.99999]),
)
def test_filters_keep_exactly_what_sorting_everything_keeps(
    seed: int, size: int, spread: float, grain: float, top_k: int, top_p: float
) -> None:
    weights = random_weights(seed, size, spread, grain)
    assert _kept(weights, top_k, top_p).tolist() == kept_by_full_sort(weights, top_k, top_p)


def random_weights(seed: int, size: int, spread: float, grain: float) -> NDArray[np.float32]:
    logits = np.random.default_rng(seed).normal(0, spread, size)
    if grain:
        logits = np.round(logits / grain) * grain  # many ties
    weights: NDArray[np.float32] = np.exp((logits - logits.max()).astype(np.float32))
    return weights


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    spread=st.sampled_from([0.0, 1.0, 4.0, 30.0]),
    top_k=st.sampled_from([0, 0, 7]),
    top_p=st.sampled_from([1.0, 0.9]),
    u=st.floats(0, 1, exclude_max=True),
)
def test_a_draw_is_always_a_token_that_was_kept(seed: int, spread: float, top_k: int, top_p: float, u: float) -> None:
    weights = random_weights(seed, 5000, spread, 0.0)
    assert choose(weights, top_k, top_p, u) in kept_by_full_sort(weights, top_k, top_p)


def test_equal_steps_of_the_share_visit_tokens_in_proportion() -> None:
    weights = random_weights(3, 300, 3.0, 0.0)
    steps = 200_000
    drawn = np.bincount([choose(weights, 0, 1.0, (step + 0.5) / steps) for step in range(0, steps, 10)], minlength=300)
    assert np.abs(drawn / drawn.sum() - weights / weights.sum()).max() < 2e-4


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.sampled_from([1, 256, 513, 5000, 5120]), u=st.floats(0, 1))
def test_blocks_find_the_token_that_adding_up_one_by_one_finds(seed: int, size: int, u: float) -> None:
    weights = np.maximum(random_weights(seed, size, 1.0, 0.0), np.float32(1e-3))
    mass = np.cumsum(weights, dtype=np.float64)
    target = u * float(mass[-1])
    assert _passed(weights, target) == min(int(np.searchsorted(mass, target, side="right")), size - 1)


@pytest.mark.parametrize("more", [{"top_k": 40}, {"top_p": 0.9}, {"top_k": 200, "top_p": 0.95, "min_p": 0.001}])
def test_draws_of_a_large_vocabulary_follow_the_distribution_of_a_plain_reference(more: dict[str, float]) -> None:
    settings_ = Sampling(seed=3, temperature=0.8, **more)  # type: ignore[arg-type]
    logits = np.random.default_rng(1).normal(0, 2.5, 8000).astype(np.float32)
    wanted = np.exp((logits.astype(np.float64) - logits.max()) / 0.8)
    wanted[wanted < settings_.min_p] = 0
    order = np.argsort(-wanted, kind="stable")[: settings_.top_k or None]
    mass = np.cumsum(wanted[order])
    order = order[: int(np.searchsorted(mass, settings_.top_p * mass[-1])) + 1] if settings_.top_p < 1 else order
    wanted[np.setdiff1d(np.arange(wanted.size), order)] = 0
    one, count = sampler(settings_), 20_000
    drawn = np.bincount([one.draw(logits, position) for position in range(count)], minlength=wanted.size)
    expected = count * wanted / wanted.sum()
    assert not drawn[expected == 0].any()
    common = expected >= 5
    square = float(((drawn - expected)[common] ** 2 / expected[common]).sum())
    degrees = int(common.sum())
    assert square < degrees + 5 * math.sqrt(2 * degrees)


@pytest.mark.parametrize("more", [{"top_k": 40}, {"top_p": 0.95}, {"top_k": 40, "top_p": 0.95}])
def test_a_draw_takes_a_fraction_of_what_sorting_the_vocabulary_takes(more: dict[str, float]) -> None:
    logits = np.random.default_rng(0).normal(0, 2.2, 49_152).astype(np.float32)
    logits[:20] += 10
    one = sampler(Sampling(seed=1, temperature=0.8, **more))  # type: ignore[arg-type]

    def least_s(work: Callable[[], object]) -> float:
        took = []
        for _ in range(30):
            began = thread_time()
            work()
            took.append(thread_time() - began)
        return min(took)

    def plainly() -> object:
        order = np.argsort(-logits)
        shares = np.exp(logits[order] - logits[order[0]])
        return np.cumsum(shares / shares.sum())

    assert least_s(lambda: one.draw(logits, 0)) < 0.4 * least_s(plainly)


def test_a_draw_depends_on_seed_and_position_only() -> None:
    logits = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    settings_ = Sampling(seed=7)
    first = [sampler(settings_).draw(logits, position) for position in range(20)]
    again = sampler(settings_)
    assert [again.draw(logits, position) for position in reversed(range(20))] == first[::-1]
    other = sampler(Sampling(seed=8))
    assert [other.draw(logits, position) for position in range(20)] != first


def test_draws_follow_the_distribution() -> None:
    logits = row(*np.log([0.5, 0.3, 0.2]))
    drawn = Counter(sampler(Sampling(seed=1)).draw(logits, position) for position in range(4000))
    assert [round(drawn[token] / 4000, 1) for token in range(3)] == [0.5, 0.3, 0.2]


def test_uniform_numbers_are_in_range_and_differ() -> None:
    numbers = {uniform(seed, position) for seed in (-1, 0, 2**40) for position in range(300)}
    assert len(numbers) == 900
    assert all(0 <= number < 1 for number in numbers)


def test_greedy_takes_the_lowest_id_of_a_tie() -> None:
    for temperature in (0, 1e-40):
        assert sampler(Sampling(temperature=temperature)).draw(row(1, 3, 3, 2), 0) == 1


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(top_k=2), {0, 1}),
        (Sampling(top_p=0.75), {0, 1}),
        (Sampling(top_p=0.49), {0}),
        (Sampling(min_p=0.5), {0, 1}),
        (Sampling(top_k=3, top_p=0.8), {0, 1}),  # of the mass of those three
        (Sampling(temperature=0.01), {0}),
    ],
)
def test_filters_keep_what_they_name(sampling: Sampling, kept: set[int]) -> None:
    logits = row(*np.log([0.5, 0.27, 0.13, 0.1]))
    drawn = {sampler(sampling).draw(logits, position) for position in range(300)}
    assert drawn == kept


def test_repetition_counts_the_prompt_presence_and_frequency_do_not() -> None:
    prompt = [1, 1]
    greedy = Sampling(temperature=0, repetition_penalty=2.0)
    assert sampler(greedy, prompt, 2).draw(row(0, 4, 3), 2) == 2
    assert sampler(Sampling(temperature=0, presence_penalty=2.0), prompt, 2).draw(row(0, 4, 3), 2) == 1
    assert sampler(Sampling(temperature=0, frequency_penalty=2.0), prompt, 2).draw(row(0, 4, 3), 2) == 1


def test_repetition_pushes_a_negative_logit_further_down() -> None:
    assert sampler(Sampling(temperature=0, repetition_penalty=2.0), [1], 1).draw(row(-3, -2, -5), 1) == 0


def test_frequency_grows_with_each_use_and_presence_does_not() -> None:
    logits = row(0, 4, 0)
    often = sampler(Sampling(temperature=0, frequency_penalty=1.5))
    assert [often.draw(logits, position) for position in range(5)] == [1, 1, 1, 0, 2]
    once = sampler(Sampling(temperature=0, presence_penalty=1.5))
    assert [once.draw(logits, position) for position in range(5)] == [1] * 5


def test_output_that_was_there_at_the_start_is_counted() -> None:
    penalised = sampler(Sampling(temperature=0, presence_penalty=2.0), [5, 1], 1)
    assert penalised.draw(row(0, 4, 3), 2) == 2


def test_many_distinct_tokens_are_all_penalised() -> None:
    tokens = list(range(500))
    penalised = sampler(Sampling(temperature=0, repetition_penalty=10.0), tokens, 500)
    assert penalised.draw(np.ones(501, np.float32), 500) == 500


def test_a_bias_moves_a_token() -> None:
    assert sampler(Sampling(temperature=0, logit_bias={2: 5.0, 1: -100.0})).draw(row(0, 4, 0), 0) == 2


def test_ignore_eos_never_draws_an_end() -> None:
    assert sampler(Sampling(temperature=0)).draw(row(9, 1, 0), 0) == 0
    assert sampler(Sampling(temperature=0, ignore_eos=True)).draw(row(9, 1, 0), 0) == 1


def test_logprobs_are_the_models_own() -> None:
    logits = row(*np.log([0.1, 0.6, 0.3]))
    chance = logprobs(logits, 0, 2)
    assert math.isclose(chance.logprob, math.log(0.1), rel_tol=1e-5)
    assert [token for token, _ in chance.top] == [1, 2]
    assert math.isclose(chance.top[0][1], math.log(0.6), rel_tol=1e-5)
    assert logprobs(logits, 2, 0).top == ()
    assert len(logprobs(logits, 2, 20).top) == 3


def test_broken_logits_are_the_engines_failure() -> None:
    for broken in (row(np.nan, 1), row(-np.inf, -np.inf)):
        with pytest.raises(EngineFailed):
            sampler(Sampling()).draw(broken, 0)


class OnlyEven:
    """A constraint for the test: even tokens, and it remembers what was accepted."""

    stuck = False

    def __init__(self) -> None:
        self.accepted: list[int] = []
        self.masked = 0

    def allows(self, token: int) -> bool:
        return token % 2 == 0

    def mask(self) -> NDArray[np.bool_]:
        self.masked += 1
        return np.array([True, False, True, False])

    def accept(self, token: int) -> None:
        self.accepted.append(token)

    def close(self) -> None: ...


def test_a_constraint_masks_only_when_the_first_draw_was_forbidden_and_keeps_proportions() -> None:
    even = OnlyEven()
    constrained = Sampler(Sampling(seed=5), [2], 0, eog=[], constraint=even)
    logits = row(*np.log([0.3, 0.4, 0.1, 0.2]))
    drawn = Counter(constrained.draw(logits, position) for position in range(4000))
    assert set(drawn) == {0, 2}
    assert abs(drawn[0] / 4000 - 0.75) < 0.03
    assert 2000 < even.masked < 2800  # the 60 % that fell on odd tokens
    assert len(even.accepted) == 1 + 4000  # and the token that was there


def test_no_end_comes_before_min_tokens_and_stop_tokens_count_as_ends() -> None:
    eager = row(9, 8, 1, 0)
    early = Sampler(Sampling(temperature=0, min_tokens=2, stop_token_ids=frozenset({1})), [5, 5], 2, eog=[0])
    assert [early.draw(eager, position) for position in (2, 3, 4)] == [2, 2, 0]


class Complete:
    """A constraint that has nothing left but the end, 0."""

    stuck = True

    def allows(self, token: int) -> bool:
        return token == 0

    def mask(self) -> NDArray[np.bool_]:
        return np.array([True, False, False, False])

    def accept(self, token: int) -> None: ...
    def close(self) -> None: ...


@pytest.mark.parametrize("settings_", [Sampling(ignore_eos=True), Sampling(min_tokens=9)])
def test_a_grammar_that_is_complete_ends_also_where_no_end_is_wanted(settings_: Sampling) -> None:
    one = Sampler(settings_, [], 0, eog=[0], constraint=Complete())
    assert one.draw(row(1, 2, 3, 4), 0) == 0
    assert one.stuck


def test_with_a_grammar_ignore_eos_goes_on_as_long_as_anything_else_may_follow() -> None:
    one = Sampler(Sampling(temperature=0, ignore_eos=True), [], 0, eog=[0], constraint=OnlyEven())
    assert one.draw(row(9, 2, 1, 4), 0) == 2


def test_the_prompts_tokens_are_counted_faster_than_one_by_one() -> None:
    prompt = list(range(40_000)) * 3
    began = thread_time()
    one = sampler(Sampling(repetition_penalty=1.1), prompt, len(prompt))
    took = thread_time() - began
    began = thread_time()
    for token in prompt:
        one.take(token)
    assert took < 0.3 * (thread_time() - began)
