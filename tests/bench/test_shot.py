"""What can become of a request, and whose doing it was."""

import asyncio

import numpy as np
import pytest

from headgate.bench.asker import Asker, Asking
from headgate.bench.player import Player, RunTally
from headgate.bench.shot import Shot
from headgate.model.clock import monotonic
from headgate.model.errors import StartupError
from headgate.report.arrivals import CUT_OFF
from headgate.report.results import Rows
from headgate.report.summary import summarise
from headgate.wire.exchange import Exchange
from tests.bench.scene import LAST, TOKEN, Scripted, doubling, every, live, not_streamed, played, serving, whole_stream
from tests.wire.serving import until


@live
async def test_refusals_are_not_errors() -> None:
    async with doubling() as (double, url):
        double.refuse = 4
        results = await played(url, every(0.01, 10, "n=2"))
    found = summarise(results)["all"]
    assert (found.completed, found.refused, found.refused_503, found.failed) == (6, 4, 4, 0)
    assert found.reasons == {"503 invalid_request_error": 4}


def failing(status: int, code: object) -> Scripted:
    body = b'{"error":{"message":"no","type":"t","code":%b}}' % (
        b"null" if code is None else b'"%b"' % str(code).encode()
    )
    return Scripted(lambda exchange: exchange.respond(status, body))


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (429, "over_limit", "refused"),
        (429, None, "refused"),
        (503, "lane_full", "refused"),
        (503, "no_replica", "failed"),
        (500, None, "failed"),
        (502, "replica_failed", "failed"),
        (400, None, "client"),
        (404, "model_not_found", "client"),
    ],
)
def test_whose_doing_it_was(status: int, code: str | None, kind: str) -> None:
    @live
    async def run() -> None:
        tally = RunTally()
        async with serving(failing(status, code)) as url:
            results = await played(url, every(0.0, 1), tally=tally)
        assert results.reasons[results.why[0]] == f"{status} {code or 't'}"
        assert ("ok", "refused", "failed", "client")[results.kind[0]] == kind
        assert tally.messages == {f"{status} {code or 't'}": "no"}

    run()


def broken_off(exchange: Exchange) -> None:
    exchange.stream()
    exchange.event(TOKEN)
    exchange.end(b'{"error":{"message":"gone","code":"replica_failed"}}')


def unfinished(exchange: Exchange) -> None:
    exchange.stream()
    exchange.event(TOKEN)
    exchange.end(TOKEN)


def no_json(exchange: Exchange) -> None:
    exchange.stream()
    exchange.event(b"{")
    exchange.end(b"[DONE]")


def finished_without_done(exchange: Exchange) -> None:
    exchange.stream()
    exchange.event(TOKEN)
    exchange.end(LAST)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (broken_off, "broke off: replica_failed"),
        (unfinished, "the stream ended without [DONE]"),
        (no_json, "sent an event that is no JSON of OpenAI's"),
        (not_streamed, "answered with application/json instead of a stream"),
        (finished_without_done, ""),
    ],
)
def test_streams_that_do_not_end_well(answer: object, why: str) -> None:
    @live
    async def run() -> None:
        async with serving(Scripted(answer)) as url:  # type: ignore[arg-type]
            results = await played(url, every(0.0, 3))
        assert {results.reasons[i] for i in results.why} == {why}
        assert set(results.kind.tolist()) == {2 if why else 0}
        assert np.isnan(results.ttft_s).all() == bool(why)

    run()


@live
async def test_a_server_that_hangs_up() -> None:
    async with serving(lambda exchange: whole_stream(exchange)) as url:
        pass  # it is gone, and its port with it
    with pytest.raises(StartupError, match=r"can't be reached: .*is it running"):
        await played(url, every(0.0, 1))

    silent: list[Exchange] = []
    server = Scripted(silent.append)
    async with serving(server) as url:
        asker, rows = Asker((url,), Asking(), monotonic), Rows()
        await asker.probe()
        player = Player(iter(every(0.0, 3)), asker, rows, RunTally(), monotonic)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(player.play())
            await until(lambda: len(silent) == 3)
            await asker.close()  # as if the connections were lost
    results = rows.results("x", source="bench")
    assert {results.reasons[i] for i in results.why} == {
        "the server closed the connection before its answer was complete"
    }


@live
async def test_an_answer_that_never_comes_is_waited_for_only_so_long() -> None:
    async with serving(Scripted(lambda exchange: None)) as url:
        results = await played(url, every(0.01, 3), timeout_s=0.2)
    assert {results.reasons[i] for i in results.why} == {"no end within the time allowed"}
    assert (results.e2e_s > 0.2).all()


@live
async def test_stopping_cuts_off_what_is_under_way() -> None:
    async with doubling() as (double, url):
        asker, rows, tally = Asker((url,), Asking(), monotonic), Rows(), RunTally()
        await asker.probe()
        player = Player(iter(every(0.01, 1000, "ttft=60000")), asker, rows, tally, monotonic)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(player.play())
            await until(lambda: double.seen >= 5)
            assert player.in_flight >= 5
            player.stop()
        await asker.close()
        assert player.in_flight == 0
    found = summarise(rows.results("x", source="bench"))[""]
    assert found.requests == found.unfinished == tally.sent
    assert found.reasons == {CUT_OFF: tally.sent}


def test_times_count_from_when_a_request_was_due_not_from_when_it_was_sent() -> None:
    """The client was 0.4 s late with it, and the server took 0.1 s: who asked has waited for 0.5 s."""
    (arrival,) = every(0.1, 1)
    shot = Shot(arrival, 10.0, True, lambda: 10.4, lambda _: None)
    shot.lag_s = 0.4
    shot.first_at, shot.ended_at = 10.5, 10.9
    assert shot.ttft_s == pytest.approx(0.5)
    assert shot.e2e_s == pytest.approx(0.9)
