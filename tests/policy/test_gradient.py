import heapq
import random
from collections import deque
from collections.abc import Callable
from statistics import median

import pytest

from headgate.policy.replicas.gradient import STALE_S, WINDOW, GradientLimit

Capacity = Callable[[float], float]


class Slots:
    """Serves N at once; the others queue inside, which shows in the time to first token."""

    def __init__(self, capacity: Capacity, slowness: Capacity) -> None:
        self.capacity, self.slowness = capacity, slowness
        self.waiting: deque[float] = deque()
        self.running = 0

    def room(self, now: float) -> bool:
        return self.running < self.capacity(now)

    def factor(self, now: float, in_flight: int) -> float:
        return self.slowness(now)


class Shared(Slots):
    """Takes everybody at once, and beyond N is slower for all of them."""

    def room(self, now: float) -> bool:
        return True

    def factor(self, now: float, in_flight: int) -> float:
        return self.slowness(now) * max(1.0, in_flight / self.capacity(now))


def saturate(
    replica: Slots, limit: GradientLimit, until: float, seed: int = 1, noise: float = 0.25
) -> list[tuple[float, float]]:
    """As many requests as the limit lets through, always. Gives the limit over time."""
    rng, now, in_flight, number = random.Random(seed), 0.0, 0, 0
    ends: list[tuple[float, int, float, int, float]] = []
    history: list[tuple[float, float]] = []
    while now < until:
        while in_flight < max(1, int(limit.limit)):
            in_flight += 1
            replica.waiting.append(now)
        while replica.waiting and replica.room(now):
            sent, number, prompt = replica.waiting.popleft(), number + 1, rng.randint(50, 400)
            replica.running += 1
            factor = replica.factor(now, in_flight)
            prefill_s = 0.0004 * (prompt + 100) * factor * rng.lognormvariate(0, noise)
            tpot_s = 0.02 * factor * rng.lognormvariate(0, noise)
            end = now + prefill_s + tpot_s * rng.randint(20, 80)
            heapq.heappush(ends, (end, number, now + prefill_s - sent, prompt, tpot_s))
        now, _, ttft_s, prompt, tpot_s = heapq.heappop(ends)
        limit.observe(ttft_s, prompt, tpot_s, in_flight, now)
        in_flight, replica.running = in_flight - 1, replica.running - 1
        history.append((now, limit.limit))
    return history


def settled(history: list[tuple[float, float]], capacity: float, start: float, end: float) -> bool:
    """Most of the time it is near the capacity (the rest are experiments), and the middle is nearer."""
    limits = [int(limit) for when, limit in history if start <= when < end]
    near = sum(0.7 * capacity <= limit <= 1.6 * capacity for limit in limits)
    return near >= 0.75 * len(limits) and 0.8 * capacity <= median(limits) <= 1.3 * capacity


def steady(_: float) -> float:
    return 1.0


@pytest.mark.parametrize("kind", [Slots, Shared])
@pytest.mark.parametrize("capacity", [4, 9, 24, 64])
@pytest.mark.parametrize("start", [2, 8, 64])
def test_the_limit_settles_near_what_the_replica_can_take(kind: type[Slots], capacity: int, start: int) -> None:
    # A second is a request's life without a queue; a window takes a small replica longer.
    known_by = 200.0 + 2_000.0 / capacity
    history = saturate(kind(lambda _: capacity, steady), GradientLimit(start), known_by + 250.0, seed=capacity + start)
    assert settled(history, capacity, known_by, known_by + 250.0)


@pytest.mark.parametrize("kind", [Slots, Shared])
def test_the_limit_follows_a_change_of_capacity_both_ways(kind: type[Slots]) -> None:
    history = saturate(kind(lambda now: 10 if 200.0 < now < 500.0 else 30, steady), GradientLimit(), 800.0)
    assert settled(history, 30, 100.0, 200.0)
    assert settled(history, 10, 340.0, 500.0)
    assert settled(history, 30, 620.0, 800.0)


@pytest.mark.parametrize("kind", [Slots, Shared])
def test_a_replica_that_becomes_slower_for_everybody_keeps_its_limit(kind: type[Slots]) -> None:
    history = saturate(kind(lambda _: 16, lambda now: 2.0 if now > 200.0 else 1.0), GradientLimit(), 700.0)
    assert settled(history, 16, 350.0, 700.0)
    assert min(limit for when, limit in history if when > 100.0) >= 4


def test_a_slow_drift_of_what_is_normal_is_followed() -> None:
    history = saturate(Slots(lambda _: 16, lambda now: 1.0 + now / 600.0), GradientLimit(), 900.0)
    assert settled(history, 16, 200.0, 900.0)


def test_single_samples_that_scatter_widely_do_not_throw_it_off() -> None:
    history = saturate(Slots(lambda _: 16, steady), GradientLimit(), 900.0, seed=5, noise=0.4)
    limits = [limit for when, limit in history if when > 300.0]
    assert 0.7 * 16 <= median(limits) <= 1.3 * 16


def feed(limit: GradientLimit, windows: int, ttft_s: float, in_flight: int, start: float = 0.0) -> None:
    for n in range(windows * (WINDOW + in_flight)):
        limit.observe(ttft_s, 100, None, in_flight, start + 0.01 * n)


def test_a_limit_that_is_not_used_does_not_grow() -> None:
    limit = GradientLimit(start=8)
    feed(limit, 50, 0.1, 3)
    assert limit.limit == 8.0


def test_it_stays_between_least_and_most() -> None:
    limit = GradientLimit(start=2, least=2, most=12)
    feed(limit, 100, 0.1, 12)
    assert limit.limit <= 12.0
    assert limit.limit > 9.0
    low = GradientLimit(start=4, least=4)
    feed(low, 2, 0.1, 1)
    feed(low, 20, 10.0, 1, 100.0)
    assert low.limit == 4.0


def test_without_use_of_its_own_high_latency_is_the_new_normal() -> None:
    limit = GradientLimit(start=8)
    feed(limit, 3, 0.1, 2)
    feed(limit, 40, 1.0, 2, 100.0)
    assert limit.limit == 8.0


def test_samples_of_different_times_are_not_judged_together() -> None:
    limit = GradientLimit(start=1)
    for n in range(10 * WINDOW):
        limit.observe(0.1, 100, 0.02, 1, n * STALE_S / (WINDOW - 2))
    assert limit.limit == 1.0


def test_times_of_nothing_are_harmless() -> None:
    limit = GradientLimit()
    for n in range(1_000):
        limit.observe(0.0, 0, 0.0, 0, 0.001 * n)
    assert limit.limit == 8.0


def test_a_window_ends_with_its_last_request_after_those_that_were_under_way() -> None:
    limit, changed = GradientLimit(8.0), []
    for number in range(1, 100):
        before = limit.limit
        limit.observe(0.1, 100, 0.02, 8, 0.01 * number)
        if limit.limit != before:
            changed.append(number)
    assert changed == [8 + WINDOW, 2 * (8 + WINDOW)]
