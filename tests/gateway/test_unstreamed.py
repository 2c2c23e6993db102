"""The first token of an answer in one piece was there when its engine says, or when it was heard, or at an unknown
time: never when the whole answer was."""

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from headgate.model.event import Ended
from headgate.model.outcome import Outcome
from headgate.replay.replay import Log, Replayed, replay
from tests.engine.process import ask, headgate
from tests.gateway.test_gateway import chat, double, eventually, seen
from tests.gateway.test_hedge import HEDGE, ROUTING

pytestmark = pytest.mark.timeout(90)

SLOW = "ttft=150 itl=10 n=40"
"""Its first token after 0.15 s, and all of it after 0.55 s."""
FIRST_S, WHOLE_S, LATE_S = 0.15, 0.54, 0.2
"""The last: how late a busy machine may be."""
NOT_GATHERED: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
}
"""What engines write another way where they stream: the gateway asks for the answer in one piece."""
GATHERED: dict[str, Any] = {"max_tokens": 4000}
"""An answer of 4 000 tokens may outlast its lane: the gateway asks for a stream, and puts it together."""


@dataclass
class Scene:
    url: str
    engine: str
    log: Path
    number: int = 0

    def ask(self, content: str, path: str = "/v1/chat/completions", **more: Any) -> dict[str, Any]:
        """Its record."""
        self.number += 1
        name = f"u-{self.number}"
        body = chat(content, **more)
        if path == "/v1/completions":
            body = {"model": "default", "prompt": content, **more}
        status, answer, *_ = ask(f"{self.url}{path}", body, {"x-request-id": name})
        assert status == 200, answer
        told: dict[str, Any] = json.loads(ask(f"{self.url}/admin/requests/{name}")[1])
        record: dict[str, Any] = told["record"]
        taken = ("accept_s", "queue_s", "retry_s", "first_s", "stream_s", "end_s")
        assert sum(record.get(stage, 0.0) for stage in taken) == pytest.approx(record["e2e_s"])
        return record

    def figure(self, name: str) -> float:
        lines = ask(f"{self.url}/metrics")[1].decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("unstreamed")
    with ExitStack() as stack:
        _, engine = stack.enter_context(double())
        path, log = folder / "headgate.yaml", folder / "events.jsonl"
        config = {"replicas": [{"url": engine, "slots": 8, "id": "a"}], "listen": {"port": 0}}
        path.write_text(json.dumps(config))
        _, url = stack.enter_context(headgate("serve", "--config", str(path), "--event-log", str(log)))
        yield Scene(url, engine, log)


@pytest.mark.parametrize("tell", ["", " tell=lies"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_of_an_engine_that_does_not_tell_the_first_token_is_unknown(on: Scene, path: str, tell: str) -> None:
    before = on.figure("headgate_time_to_first_token_seconds_count")
    record = on.ask(SLOW + tell, path, max_tokens=40, **NOT_GATHERED)
    assert record.get("ttft_s") is None
    assert record.get("tpot_s") is None
    assert record["first_s"] >= WHOLE_S  # all of its time at the replica
    assert on.figure("headgate_time_to_first_token_seconds_count") == before


@pytest.mark.parametrize("tell", ["vllm", "llama"])
def test_an_engine_that_tells_is_believed(on: Scene, tell: str) -> None:
    record = on.ask(f"{SLOW} tell={tell}", max_tokens=40, **NOT_GATHERED)
    assert FIRST_S <= record["ttft_s"] <= FIRST_S + LATE_S
    assert record["stream_s"] == pytest.approx(record["e2e_s"] - record["ttft_s"], abs=LATE_S)
    assert record["tpot_s"] == pytest.approx(record["stream_s"] / 39)
    assert record["engine"]["decode_ms"] > 0


def test_a_stream_that_the_gateway_puts_together_has_the_first_token_that_was_heard(on: Scene) -> None:
    record = on.ask(SLOW, **GATHERED)
    assert FIRST_S <= record["ttft_s"] <= FIRST_S + LATE_S
    assert 0.005 < record["tpot_s"] < 0.05


def test_a_client_that_leaves_while_its_answer_is_put_together_got_nothing(on: Scene) -> None:
    place = urlsplit(on.url)
    client = http.client.HTTPConnection(place.hostname or "", place.port)
    headers = {"content-type": "application/json", "x-request-id": "left"}
    client.request("POST", "/v1/chat/completions", json.dumps(chat("ttft=50 itl=20 n=1000", **GATHERED)), headers)
    began = time.monotonic()
    eventually(lambda: seen(on.engine)["running"] > 0 and time.monotonic() > began + 0.3)
    client.close()
    eventually(lambda: ask(f"{on.url}/admin/requests/left")[0] == 200 and seen(on.engine)["running"] == 0)
    eventually(lambda: "cancelled" in str(json.loads(ask(f"{on.url}/admin/requests/left")[1]).get("record")))
    record = json.loads(ask(f"{on.url}/admin/requests/left")[1])["record"]
    assert record["status"] == 499
    assert 0.05 <= record["ttft_s"] < 0.05 + LATE_S


def test_streams_are_as_they_were(on: Scene) -> None:
    record = on.ask(SLOW, stream=True)
    assert FIRST_S <= record["ttft_s"] <= FIRST_S + LATE_S


def test_what_the_dispatcher_was_told_is_in_the_log_and_is_decided_again(on: Scene) -> None:
    on.ask(f"{SLOW} tell=vllm", max_tokens=40, **NOT_GATHERED)
    on.ask(SLOW, max_tokens=40, **NOT_GATHERED)
    time.sleep(0.5)  # it is written five times a second
    ended = [event for _, event, _ in Log(on.log).entries() if isinstance(event, Ended)]
    told = [event for event in ended if event.outcome is Outcome.COMPLETED]
    assert any(event.first_s is None for event in told)
    assert all(FIRST_S - 0.01 <= event.first_s <= FIRST_S + LATE_S for event in told if event.first_s is not None)
    assert sum(event.first_s is not None for event in told) >= 1
    assert isinstance(replay(on.log), Replayed)


def test_a_log_of_before_says_nothing_of_first_tokens() -> None:
    assert msgspec.json.decode(b'{"request_id":"r","outcome":"completed","usage":[1,2]}', type=Ended).first_s is None


@pytest.mark.parametrize("more", [GATHERED, {"max_tokens": 40, **NOT_GATHERED}], ids=["read along", "passed on"])
def test_a_second_replica_that_wins_is_asked_about_its_own_first_token(tmp_path: Path, more: dict[str, Any]) -> None:
    with ExitStack() as stack:
        (_, one), (_, other) = stack.enter_context(double()), stack.enter_context(double())
        path = tmp_path / "headgate.yaml"
        replicas = [{"url": one, "slots": 8, "id": "a"}, {"url": other, "slots": 8, "id": "b"}]
        config = {"replicas": replicas, "listen": {"port": 0}, "hedge": HEDGE, "routing": ROUTING}
        path.write_text(json.dumps(config))
        _, url = stack.enter_context(headgate("serve", "--config", str(path)))
        scene = Scene(url, one, tmp_path)
        for _ in range(20):
            scene.ask("n=1", **more)
        ask(f"{one}/hold", b"20000")
        for _ in range(4):
            record = scene.ask(f"{SLOW} tell=vllm", **more)
            if record.get("hedge", {}).get("result") == "won":
                break
        assert record["hedge"]["result"] == "won"
        assert record["replica"] == "b"
        assert FIRST_S <= record["first_s"] <= FIRST_S + LATE_S
        assert record["stream_s"] > 0.2
