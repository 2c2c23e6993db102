"""A replica that does not answer in time gets a rival: real sockets, one engine that is slow and one that is quick."""

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from headgate.replay.replay import Replayed, replay
from headgate.replica.http import PoolLimits
from tests.engine.process import ask, headgate
from tests.gateway.test_gateway import chat, double, eventually, seen

pytestmark = pytest.mark.timeout(60)
HEDGE = {"enabled": True, "least_samples": 20, "least_s": 0.1, "share": 1.0}
ROUTING = {"algorithm": "least_connections"}
"""By requests alone, and the first among equals: what is idle goes to the same replica each time."""
PROMPT_S = 0.1
"""In which the loser has to hear of it."""


@dataclass
class Scene:
    url: str
    first: str
    """Where everything goes that finds both idle."""
    second: str
    log: Path

    def hold(self, first_ms: int, second_ms: int) -> None:
        for engine, held_ms in ((self.first, first_ms), (self.second, second_ms)):
            ask(f"{engine}/hold", str(held_ms).encode())

    def let_stale(self, asked_at: float) -> None:
        """What breaks off sooner on a connection that was used before is sent there once more, and no failure."""
        eventually(lambda: bool(seen(self.first)) and time.monotonic() > asked_at + PoolLimits().stale_s + 0.3)

    def idle(self) -> None:
        eventually(lambda: seen(self.first)["running"] + seen(self.second)["running"] == 0)

    def record(self, request_id: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(ask(f"{self.url}/admin/requests/{request_id}")[1])
        return found

    def hedges(self, result: str) -> int:
        """As /metrics counts them."""
        figures = ask(f"{self.url}/metrics")[1].decode().splitlines()
        wanted = [line for line in figures if line.startswith("headgate_hedges_total") and f'result="{result}"' in line]
        return sum(int(float(line.rpartition(" ")[2])) for line in wanted)


@contextmanager
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        (_, one), (_, other) = stack.enter_context(double()), stack.enter_context(double())
        ask(f"{one}/word", b"a ")
        ask(f"{other}/word", b"b ")
        path, log = tmp_path / "headgate.yaml", tmp_path / "events.jsonl"
        replicas = [{"url": one, "slots": 8, "id": "a"}, {"url": other, "slots": 8, "id": "b"}]
        config = {"replicas": replicas, "listen": {"port": 0}, "hedge": HEDGE, "routing": ROUTING}
        path.write_text(json.dumps(config))
        _, url = stack.enter_context(headgate("serve", "--config", str(path), "--event-log", str(log)))
        for stream in (True, False):
            for _ in range(20):
                assert ask(f"{url}/v1/chat/completions", chat("n=1", stream=stream))[0] == 200
        yield Scene(url, one, other, log)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with scene(tmp_path_factory.mktemp("hedge")) as made:
        yield made


@pytest.fixture
def on(shared: Scene) -> Iterator[Scene]:
    """With nothing left of the test before."""
    shared.idle()
    yield shared
    shared.hold(0, 0)
    shared.idle()


class Asked:
    """A client that notes when it heard the first word."""

    def __init__(self, url: str, content: str, stream: bool = True, **more: Any) -> None:
        self.connection = http.client.HTTPConnection(urlsplit(url).netloc)
        body = json.dumps(chat(content, stream=stream, **more))
        self.connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})

    def text(self) -> str:
        answer = self.connection.getresponse()
        assert answer.status == 200
        self.id = answer.headers["x-request-id"]
        said: list[str] = []
        for line in answer:
            if line.startswith(b"data: {"):
                if not said:
                    self.first_at = time.monotonic()
                said.append(json.loads(line[6:])["choices"][0]["delta"]["content"])
        self.connection.close()
        return "".join(said)

    def whole(self) -> str:
        answer = self.connection.getresponse()
        said: str = json.loads(answer.read())["choices"][0]["message"]["content"]
        self.first_at, self.id = time.monotonic(), answer.headers["x-request-id"]
        self.connection.close()
        return said


def closed(engine: str, since: int) -> float:
    """When its client closed the next connection."""
    eventually(lambda: len(seen(engine)["closed_at"]) > since)
    at: float = seen(engine)["closed_at"][since]
    return at


# -- who is first -----------------------------------------------------------------------------------------------


def test_the_quick_one_answers_and_the_slow_one_is_cancelled_at_once(on: Scene) -> None:
    on.hold(20_000, 0)
    before = len(seen(on.first)["closed_at"])
    asked = Asked(on.url, "n=5 itl=20")
    assert asked.text() == "b b b b b ", "the winner's words, all of them and no others"
    assert closed(on.first, before) - asked.first_at < PROMPT_S
    told = on.record(asked.id)
    assert told["record"]["replica"] == "b"
    hedge = told["record"]["hedge"]
    assert (hedge["first"], hedge["second"], hedge["result"]) == ("a", "b", "won")
    assert 0.1 <= hedge["at_s"] < 5
    assert "a had not answered when b was asked as well" in json.dumps(told)
    assert on.hedges("won") >= 1


def test_the_first_one_may_still_be_first(on: Scene) -> None:
    on.hold(500, 20_000)
    before = len(seen(on.second)["closed_at"])
    asked = Asked(on.url, "n=4 itl=20")
    assert asked.text() == "a a a a "
    assert closed(on.second, before) - asked.first_at < PROMPT_S
    record = on.record(asked.id)["record"]
    assert (record["replica"], record["hedge"]["result"]) == ("a", "lost")
    assert on.hedges("lost") >= 1


@pytest.mark.parametrize("more", [{}, {"max_tokens": 5}], ids=["read along", "passed on"])
def test_an_answer_in_one_piece_is_hedged_too(on: Scene, more: dict[str, Any]) -> None:
    on.hold(20_000, 0)
    before = len(seen(on.first)["closed_at"])
    asked = Asked(on.url, "n=3", stream=False, **more)
    assert asked.whole() == "b b b "
    assert closed(on.first, before) - asked.first_at < PROMPT_S
    record = on.record(asked.id)["record"]
    assert (record["replica"], record["hedge"]["result"], record["output_tokens"]) == ("b", "won", 3)


def test_an_answer_in_one_piece_that_has_begun_is_not_given_up_for_one_that_began_later(on: Scene) -> None:
    on.hold(0, 600)
    asked = Asked(on.url, "n=20 itl=20", stream=False)
    assert asked.whole() == "a " * 20
    assert on.record(asked.id)["record"]["hedge"]["result"] == "lost"


def test_nobody_is_sent_twice_who_is_as_quick_as_usual(on: Scene) -> None:
    before = seen(on.second)["seen"]
    for _ in range(5):
        asked = Asked(on.url, "n=2")
        assert asked.text() == "a a "
        assert "hedge" not in on.record(asked.id)["record"]
    assert seen(on.second)["seen"] == before


def test_a_client_that_leaves_cancels_both(on: Scene) -> None:
    on.hold(20_000, 20_000)
    asked = Asked(on.url, "n=2")
    eventually(lambda: seen(on.first)["running"] == seen(on.second)["running"] == 1)
    left = time.monotonic()
    first, second = (len(seen(engine)["closed_at"]) for engine in (on.first, on.second))
    asked.connection.close()
    assert closed(on.first, first) - left < PROMPT_S
    assert closed(on.second, second) - left < PROMPT_S
    eventually(lambda: on.hedges("cancelled") == 1)


def test_a_second_that_refuses_changes_nothing(on: Scene) -> None:
    on.hold(500, 0)
    ask(f"{on.second}/refuse", b"1")
    asked = Asked(on.url, "n=3")
    assert asked.text() == "a a a "
    assert on.record(asked.id)["record"]["hedge"]["result"] == "failed"


def test_what_was_decided_is_decided_again(on: Scene) -> None:
    on.hold(20_000, 0)
    assert Asked(on.url, "n=2").text() == "b b "
    eventually(lambda: b'"hedge_won"' in on.log.read_bytes())
    found = replay(on.log)
    assert isinstance(found, Replayed), str(found)
    assert b'["hedge",' in on.log.read_bytes()


# -- failures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_if_the_first_dies_the_second_is_the_request(on: Scene, stream: bool) -> None:
    on.hold(20_000, 3000)
    before, taken_over = seen(on.second)["seen"], on.hedges("took_over")
    asked = Asked(on.url, "n=3", stream)
    eventually(lambda: seen(on.second)["running"] == 1)
    on.let_stale(time.monotonic())
    ask(f"{on.first}/drop", b"")
    assert (asked.text() if stream else asked.whole()) == "b b b "
    assert seen(on.second)["seen"] == before + 1, "nobody asked again"
    record = on.record(asked.id)["record"]
    assert (record["outcome"], record["replica"], record["hedge"]["result"]) == ("completed", "b", "took_over")
    assert [attempt["replica"] for attempt in record["failed"]] == ["a"]
    assert on.hedges("took_over") == taken_over + 1


def test_if_both_fail_it_is_tried_again_as_ever(on: Scene) -> None:
    on.hold(20_000, 20_000)
    asked = Asked(on.url, "n=3")
    eventually(lambda: seen(on.first)["running"] == seen(on.second)["running"] == 1)
    on.let_stale(time.monotonic())
    on.hold(0, 0)
    failed = on.hedges("failed")
    ask(f"{on.second}/drop", b"")
    eventually(lambda: on.hedges("failed") == failed + 1)
    ask(f"{on.first}/drop", b"")
    assert asked.text() in ("a a a ", "b b b ")
    record = on.record(asked.id)["record"]
    assert (record["outcome"], record["hedge"]["result"]) == ("completed", "failed")
    assert [attempt["replica"] for attempt in record["failed"]] == ["a"]
