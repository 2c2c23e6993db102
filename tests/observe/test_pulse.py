import asyncio
import gc
from collections.abc import Callable

import pytest
import uvloop

from headgate.measure.pulse import EVERY_S, LAG_S, PAUSES, Lag, Pulse
from headgate.model.clock import monotonic
from tests.wire.serving import live, until


def busy(seconds: float) -> None:
    """Keep the loop from everything else for so long."""
    ends = monotonic() + seconds
    while monotonic() < ends:
        pass


# -- the loop -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_a_blocked_loop_is_seen_for_as_long_as_it_was_blocked(run: Callable[..., None]) -> None:
    async def scene() -> None:
        pulse = Pulse(monotonic)
        pulse.start(asyncio.get_running_loop())
        try:
            await until(lambda: pulse.lag.max is not None)
            seen = len(pulse.pauses)
            began = monotonic()
            busy(0.3)
            ended = monotonic()
            await until(lambda: len(pulse.pauses) > seen)
        finally:
            pulse.stop()
        pause = pulse.pauses[seen]
        assert pause.kind == "loop"
        # The next look was due at some moment of the first 50 ms, and was made when the blocking was over.
        assert pause.at <= began + EVERY_S
        assert pause.took_s >= ended - began - EVERY_S
        assert pause.at + pause.took_s >= ended
        assert pulse.lag.max is not None
        assert pulse.lag.max >= pause.took_s

    run(scene())


@live
async def test_a_loop_that_is_free_is_not_late() -> None:
    pulse = Pulse(monotonic)
    pulse.start(asyncio.get_running_loop())
    try:
        await until(lambda: len(pulse.lag._late) >= 5)
    finally:
        pulse.stop()
    least = pulse.lag.quantile(0.0)
    assert least is not None
    assert 0 <= least < 0.02


@live
async def test_after_stop_nothing_is_left_behind() -> None:
    pulse = Pulse(monotonic)
    before = list(gc.callbacks)
    pulse.stop()
    pulse.start(asyncio.get_running_loop())
    pulse.start(asyncio.get_running_loop())
    assert len(gc.callbacks) == len(before) + 1
    pulse.stop()
    pulse.stop()
    assert gc.callbacks == before
    assert pulse._timer is None


def test_lag_counts_the_looks_that_a_block_made_impossible() -> None:
    lag = Lag()
    for _ in range(1000):
        lag.add(0.001)
    lag.add(1.0)
    assert lag.max == 1.0
    # 51 s of 1 ms and a second in which whoever came waited between nothing and a second: the worst 1 % are in it.
    p99 = lag.quantile(0.99)
    assert p99 is not None
    assert p99 == pytest.approx(0.5, abs=0.06)
    assert lag.quantile(0.5) == 0.001


def test_lag_is_that_of_the_last_minute() -> None:
    lag = Lag()
    assert (lag.max, lag.quantile(0.99)) == (None, None)
    lag.add(0.04)
    for _ in range(round(LAG_S / EVERY_S) - 1):
        lag.add(0.001)
    assert lag.max == 0.04
    lag.add(0.001)
    assert lag.max == 0.001


def test_a_block_of_hours_takes_no_more_memory_than_a_minute() -> None:
    lag = Lag()
    lag.add(10_000.0)
    assert len(lag._late) == round(LAG_S / EVERY_S)


# -- the collector ------------------------------------------------------------------------------------------


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_collections_are_counted_and_long_ones_kept() -> None:
    clock = Hand()
    pulse = Pulse(clock)
    for took_s in (0.001, 0.02, 0.004):
        pulse.on_gc("start", {"generation": 2})
        clock.now += took_s
        pulse.on_gc("stop", {"generation": 2})
        clock.now += 1.0
    assert pulse.gc_pauses == 3
    assert pulse.gc_pause_s == pytest.approx(0.025)
    (pause,) = pulse.pauses
    assert pause.kind == "gc"
    assert pause.at == pytest.approx(101.001)
    assert pause.took_s == pytest.approx(0.02)


def test_a_collection_that_was_under_way_at_the_start_is_left_out() -> None:
    pulse = Pulse(Hand())
    pulse.on_gc("stop", {})
    assert (pulse.gc_pauses, pulse.gc_pause_s) == (0, 0.0)


def test_pauses_are_bounded() -> None:
    clock = Hand()
    pulse = Pulse(clock)
    for _ in range(PAUSES + 10):
        pulse.on_gc("start", {})
        clock.now += 0.01
        pulse.on_gc("stop", {})
    assert len(pulse.pauses) == PAUSES
    assert pulse.pauses[-1].at == pytest.approx(clock.now - 0.01)


@live
async def test_a_real_collection_is_seen() -> None:
    pulse = Pulse(monotonic)
    pulse.start(asyncio.get_running_loop())
    try:
        gc.collect()
        assert pulse.gc_pauses >= 1
        assert pulse.gc_pause_s > 0
    finally:
        pulse.stop()


def test_a_collection_with_no_call_left_is_not_measured_and_throws_nothing() -> None:
    """Seen in the fuzz: an engine's answer nested a thousand deep, and the collector ran at its bottom."""
    calls_left = True

    def clock() -> float:
        if not calls_left:
            raise RecursionError
        return 1.0

    pulse = Pulse(clock)
    pulse.on_gc("start", {})
    calls_left = False
    pulse.on_gc("stop", {})
    calls_left = True
    pulse.on_gc("stop", {})
    assert pulse.gc_pauses == 0
    pulse.on_gc("start", {})
    pulse.on_gc("stop", {})
    assert pulse.gc_pauses == 1
