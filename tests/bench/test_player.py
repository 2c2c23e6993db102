"""The open loop: every arrival is sent when it is due, once, and what comes back is counted from then."""

import asyncio
import itertools

import numpy as np
import pytest

from headgate.bench.alarm import _LoopAlarm, alarm
from headgate.bench.asker import Asker, Asking, address
from headgate.bench.player import Player, Tally
from headgate.model.clock import monotonic
from headgate.model.errors import StartupError
from headgate.report.results import Rows
from headgate.report.summary import CUT_OFF, summarise
from headgate.wire.exchange import Exchange
from headgate.workload.arrival import Arrival
from headgate.workload.load import load
from tests.bench.scene import LAST, TOKEN, Scripted, doubling, live, played, serving, whole_stream
from tests.wire.serving import until


def every(gap_s: float, count: int, prompt: str | None = None, **more: object) -> list[Arrival]:
    return [Arrival(i * gap_s, 20, 5, prompt=prompt, **more) for i in range(count)]  # type: ignore[arg-type]


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
    tally = Tally()
    async with serving(Scripted(whole_stream)) as url:
        results = await played(url, load("poisson:rate=100", 2, duration_s=1), tally=tally)
    assert np.median(results.lag_s) < 0.002
    assert tally.behind == ""
    assert tally.sent == tally.completed == len(results)


@live
async def test_a_client_that_falls_behind_says_so() -> None:
    steps = itertools.count()
    slow = lambda: monotonic() + next(steps) * 5e-3  # noqa: E731  # looking at the clock takes a while
    tally = Tally()
    async with serving(Scripted(whole_stream)) as url:
        results = await played(url, every(0.001, 150), clock=slow, tally=tally)
    assert results.ok.all()
    assert tally.late > 0.01 * tally.sent
    assert "the client fell behind" in tally.behind
    assert f"of {tally.sent} more than 50 ms" in tally.behind


@pytest.mark.parametrize(
    ("lags", "behind"), [([0.001] * 99 + [0.3], False), ([0.001] * 98 + [0.06] * 2, True), ([0.012] * 100, True)]
)
def test_when_a_client_is_behind(lags: list[float], behind: bool) -> None:
    tally = Tally()
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


# -- what can become of a request --------------------------------------------------------------------------------


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
        tally = Tally()
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


def not_streamed(exchange: Exchange) -> None:
    exchange.respond(200, b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}')


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
        player = Player(iter(every(0.0, 3)), asker, rows, Tally(), monotonic)
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
        asker, rows, tally = Asker((url,), Asking(), monotonic), Rows(), Tally()
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


# -- what is asked ----------------------------------------------------------------------------------------------


@live
async def test_lane_tenant_session_and_usage_are_said() -> None:
    server = Scripted(whole_stream)
    asking = Asking(keys={"": "any", "acme": "secret"}, ignore_eos=True, extra={"temperature": 0}, seed=3)
    arrivals = [
        Arrival(0.0, 30, 7, lane="fast", tenant="acme", session="s1"),
        Arrival(0.01, 30, 8, tenant="else", prompt=[{"role": "user", "content": "hello"}]),
    ]
    async with serving(server) as url:
        await played(url, arrivals, asking)
    (path, headers, body), (_, others, asked) = server.asked
    assert path == "/v1/chat/completions"
    assert headers["authorization"] == "Bearer secret"
    assert (headers["x-headgate-lane"], headers["x-headgate-session"], headers["x-headgate-timings"]) == (
        "fast",
        "s1",
        "1",
    )
    assert body["model"] == "some-model"
    assert body["max_tokens"] == 7
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert (body["ignore_eos"], body["temperature"]) == (True, 0)
    assert len(body["messages"][0]["content"].split(" ")) == 30
    assert others["authorization"] == "Bearer any"
    assert "x-headgate-lane" not in others
    assert asked["messages"] == [{"role": "user", "content": "hello"}]


@live
async def test_completions_without_a_stream() -> None:
    server = Scripted(not_streamed)
    async with serving(server) as url:
        results = await played(url + "/v1", every(0.0, 1), Asking(endpoint="completions", stream=False, model="m"))
    ((path, _, body),) = server.asked
    assert path == "/v1/completions"
    assert body["model"] == "m"
    assert "stream" not in body
    assert len(body["prompt"].split(" ")) == 20
    assert (results.output_tokens.tolist(), results.prompt_tokens.tolist()) == ([1], [1])


@live
async def test_waiting_is_counted_where_the_server_tells_it() -> None:
    def answer(exchange: Exchange) -> None:
        exchange.stream((("x-headgate-queue-ms", "40"),))
        exchange.event(TOKEN)
        exchange.event(b'{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1},"timings":{"queue_ms":2.5}}')
        exchange.end(b"[DONE]")

    async with serving(Scripted(answer)) as url:
        results = await played(url, every(0.0, 1))
    assert results.queue_s.tolist() == pytest.approx([0.0425])
    async with serving(Scripted(whole_stream)) as url:
        results = await played(url, every(0.0, 1))
    assert np.isnan(results.queue_s).all()


@live
async def test_several_addresses_take_turns() -> None:
    one, two = Scripted(whole_stream), Scripted(whole_stream)
    async with serving(one) as first, serving(two) as second:
        asker = Asker((first, second), Asking(), monotonic)
        await asker.probe()
        await Player(iter(every(0.001, 10)), asker, Rows(), Tally(), monotonic).play()
        await asker.close()
    assert (len(one.asked), len(two.asked)) == (5, 5)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://h:1/", "http://h:1"),
        ("https://h/v1", "https://h"),
        ("http://h:1/v1/chat/completions", "http://h:1"),
        ("unix:/run/x", "unix:/run/x"),
    ],
)
def test_addresses_as_people_paste_them(given: str, found: str) -> None:
    assert address(given) == found


@pytest.mark.parametrize("given", ["ftp://h", "http://h:x", "http://", "http://h/other", "http://h:0", "http://u@h:1"])
def test_addresses_that_are_none(given: str) -> None:
    with pytest.raises(StartupError, match="is no address"):
        address(given)


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [(401, b"{}", "wants an API key"), (404, b"{}", "say which with --model"), (200, b'{"data":[]}', "names no model")],
)
def test_servers_that_do_not_say_what_they_serve(status: int, body: bytes, said: str) -> None:
    @live
    async def run() -> None:
        async with serving(lambda exchange: exchange.respond(status, body)) as url:
            with pytest.raises(StartupError, match=said):
                await played(url, every(0.0, 1))

    run()
