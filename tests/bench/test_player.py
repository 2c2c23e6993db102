"""The open loop: every arrival is sent when it is due, once, and what comes back is counted from then."""

import asyncio
import itertools
import time

import numpy as np
import pytest

from headgate.bench.alarm import _LoopAlarm, alarm
from headgate.bench.asker import Asker, Asking
from headgate.bench.player import Player, RunTally
from headgate.model.clock import monotonic
from headgate.model.errors import ReplicaFailed
from headgate.replica.connection import Call, Listener
from headgate.report.results import Rows
from headgate.report.summary import summarise
from headgate.wire.exchange import Exchange
from headgate.workload.load import load
from tests.bench.scene import Scripted, doubling, every, live, played, serving, whole_stream


@live
async def test_every_arrival_is_one_request_and_one_row() -> None:
    arrivals = list(
        load("chat=poisson:rate=150,lane=fast; rest=constant:rate=50,lane=batch,stream=no", 1, duration_s=1)
    )
    async with doubling() as (double, url):
        results = await played(url, arrivals)
        assert double.seen == len(results) == len(arrivals)
    assert results.ok.all()
    assert results.at_s.tolist() == [arrival.at_s for arrival in arrivals]
    found = summarise(results)
    assert found["fast"].requests == sum(arrival.lane == "fast" for arrival in arrivals)
    assert found["batch"].requests == 50
    assert found["fast"].output_tokens == 3 * found["fast"].requests
    assert "ttft" not in found["batch"].figures, "what is not streamed has no first token that could be seen"
    assert found["batch"].figures["e2e"].count == 50


@live
async def test_figures_are_those_that_the_server_took() -> None:
    async with doubling() as (_, url):
        results = await played(url, every(0.05, 10, "ttft=100 itl=40 n=6"))
    for found, wanted in ((results.ttft_s, 0.1), (results.tpot_s, 0.04), (results.e2e_s, 0.3)):
        assert np.median(found) == pytest.approx(wanted, abs=0.02)
    assert (results.max_gap_s >= results.tpot_s).all()
    assert {len(gaps) for gaps in results.gaps} == {5}
    assert set(results.output_tokens.tolist()) == {6}


@live
async def test_a_stall_is_seen_by_all_who_came_while_it_lasted() -> None:
    """A server that stands still for half a second. Who waits for an answer before the next request would find one slow
    request; those that were due meanwhile waited too."""
    held: list[Exchange] = []
    open_ = False

    def answer(exchange: Exchange) -> None:
        if open_:
            whole_stream(exchange)
        else:
            held.append(exchange)

    async with serving(Scripted(answer)) as url:

        def go_on() -> None:
            nonlocal open_
            open_ = True
            for exchange in held:
                whole_stream(exchange)

        asyncio.get_running_loop().call_later(0.55, go_on)
        results = await played(url, every(0.02, 50))
    assert results.ok.all()
    stalled = results.ttft_s[results.at_s < 0.45]
    assert len(stalled) == 23
    assert (stalled > 0.04).all()
    ended = results.at_s[results.at_s < 0.45] + stalled
    assert ended.max() - ended.min() < 0.1, "all ended together, so each waited from when it was due"
    assert (results.ttft_s[results.at_s > 0.75] < 0.2).all()


@live
async def test_requests_are_sent_on_time_to_a_fraction_of_a_millisecond() -> None:
    """At least one time in three: others may use this machine."""
    lags = []
    for seed in range(3):
        tally = RunTally()
        async with serving(Scripted(whole_stream)) as url:
            results = await played(url, load("poisson:rate=100", seed, duration_s=1), tally=tally)
        assert tally.sent == tally.completed == len(results)
        lags.append(float(np.median(results.lag_s)) if not tally.behind else 1.0)
    assert min(lags) < 0.002


@live
async def test_a_client_that_falls_behind_says_so() -> None:
    steps = itertools.count()
    slow = lambda: monotonic() + next(steps) * 5e-3  # noqa: E731  # looking at the clock takes a while
    tally = RunTally()
    async with serving(Scripted(whole_stream)) as url:
        results = await played(url, every(0.001, 150), clock=slow, tally=tally)
    assert results.ok.all()
    assert tally.late > 0.01 * tally.sent
    assert "the client fell behind" in tally.behind
    assert f"of {tally.sent} more than 50 ms" in tally.behind
    assert (results.ttft_s > results.lag_s).all(), "what was sent late has waited since it was due"
    assert (results.e2e_s >= results.ttft_s).all()
    assert results.lag_s.max() > 0.1


@live
async def test_what_was_due_while_the_client_stood_still_has_waited_since_then() -> None:
    async with serving(Scripted(whole_stream)) as url:
        asyncio.get_running_loop().call_later(0.1, time.sleep, 0.3)
        results = await played(url, every(0.02, 25))
    late = results.lag_s > 0.05
    assert late.sum() >= 5
    assert (results.ttft_s[late] >= results.lag_s[late]).all()
    assert (results.e2e_s[late] >= results.lag_s[late]).all()


@pytest.mark.parametrize(
    ("lags", "behind"), [([0.001] * 99 + [0.3], False), ([0.001] * 98 + [0.06] * 2, True), ([0.012] * 100, True)]
)
def test_when_a_client_is_behind(lags: list[float], behind: bool) -> None:
    tally = RunTally()
    for lag in lags:
        tally.sent += 1
        tally.late += lag > 0.05
        tally.lag.add(lag)
    assert bool(tally.behind) == behind


@live
async def test_a_loop_without_kernel_alarms_does_too() -> None:
    loop = asyncio.get_running_loop()
    for make in (alarm, _LoopAlarm):
        rang = asyncio.Event()
        due = monotonic() + 0.03
        found = make(loop, monotonic, rang.set)
        found.set(due + 10)
        found.set(due)
        await rang.wait()
        assert -0.002 < monotonic() - due < 0.1
        found.close()
        found.close()


@live
async def test_a_client_without_room_for_another_connection_says_so() -> None:
    tally = RunTally()
    async with serving(Scripted(whole_stream)) as url:
        asker, rows = Asker((url,), Asking(), monotonic), Rows()
        await asker.probe()
        asker.send = out_of_files  # type: ignore[method-assign]
        await Player(iter(every(0.001, 3)), asker, rows, tally, monotonic).play()
        await asker.close()
    assert tally.no_room == 3
    assert "3 of 3 requests could not be sent" in tally.behind


def out_of_files(prepared: object, listener: Listener) -> Call:
    error = ReplicaFailed("the replica could not be reached: [Errno 24] Too many open files")
    asyncio.get_running_loop().call_soon(listener.on_failed, error, False)
    return Call(b"", b"", listener)
