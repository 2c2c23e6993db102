"""What is asked, of whom, and as whom."""

import numpy as np
import pytest

from headgate.bench.asker import Asker, Asking, address
from headgate.bench.player import Player, RunTally
from headgate.model.clock import monotonic
from headgate.model.errors import StartupError
from headgate.report.results import Rows
from headgate.wire.exchange import Exchange
from headgate.workload.arrival import Arrival
from tests.bench.scene import TOKEN, Scripted, every, live, not_streamed, played, serving, whole_stream


@live
async def test_lane_tenant_session_and_usage_are_said() -> None:
    server = Scripted(whole_stream)
    asking = Asking(keys={"": "any", "acme": "secret"}, ignore_eos=True, extra={"temperature": 0}, seed=3)
    arrivals = [
        Arrival(0.0, 30, 7, lane="fast", tenant="acme", session="s1", ttft_s=0.4, tpot_s=0.0255),
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
    assert (headers["x-headgate-ttft-ms"], headers["x-headgate-tpot-ms"]) == ("400.000", "25.500")
    assert "x-headgate-ttft-ms" not in others
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
        await Player(iter(every(0.001, 10)), asker, Rows(), RunTally(), monotonic).play()
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
