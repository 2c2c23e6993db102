"""Every field of a request's record is what really happened: each is compared with what the client, the engine or
the clock says, over real sockets. A field that were always empty, or another request's, would pass for a fact in
each figure that is made of it."""

import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest

from headgate.model.record import Record
from tests.engine.process import ask, headgate
from tests.gateway.test_gateway import chat, double, eventually, seen
from tests.keys import hash_key
from tests.ledger import ADMIN_KEY, ADMIN_KEYS

pytestmark = pytest.mark.timeout(90)

ADMIN = {"x-api-key": ADMIN_KEY}
PROFILE = "h100-llama3-8b"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
STAGES = ("accept_s", "queue_s", "retry_s", "first_s", "stream_s", "end_s")
NEAR_S = 0.25
"""How much later a client's own clock may see what the gateway saw: others use this machine too."""
ELSEWHERE = {
    "hedge": "tests/gateway/test_hedge.py",
    "fell_back": "tests/gateway/test_dead_version.py",
    "adapter": "tests/gateway/test_kinds.py",
}
compared: set[str] = set()
"""Fields that a test in this file has looked at."""


@dataclass
class Answer:
    """What a client saw, by its own clock."""

    sent_at: float
    sent_wall: float
    status: int = 0
    first_at: float = 0.0
    ended_at: float = 0.0
    tokens: int = 0
    usage: dict[str, Any] = field(default_factory=dict)


@dataclass
class Stage:
    url: str
    engines: dict[str, str]
    """Doubles with one slot each, by replica."""

    def ask(self, name: str, body: dict[str, Any], *, path: str = "/v1/chat/completions", **headers: str) -> Answer:
        place = urlsplit(self.url)
        client = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
        said = {"x-request-id": name, "content-type": "application/json"}
        said |= {key.replace("_", "-"): value for key, value in headers.items()}
        found = Answer(time.monotonic(), time.time())
        try:
            client.request("POST", path, json.dumps(body), said)
            answer = client.getresponse()
            found.status = answer.status
            if body.get("stream"):
                self._read(answer, found)
            else:
                found.usage = json.loads(answer.read()).get("usage", {})
        finally:
            client.close()
        found.ended_at = time.monotonic()
        return found

    def _read(self, answer: http.client.HTTPResponse, found: Answer) -> None:
        while line := answer.readline():
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            found.usage = event.get("usage") or found.usage
            if event["choices"]:
                found.first_at = found.first_at or time.monotonic()
                found.tokens += 1

    def record(self, name: str) -> dict[str, Any]:
        """With the defaults, which a record leaves out."""

        def lines() -> dict[str, dict[str, Any]]:
            made = map(json.loads, ask(f"{self.url}/admin/records?last=600", headers=ADMIN)[1].splitlines())
            return {line["id"]: line for line in made}

        eventually(lambda: name in lines())
        defaults = dict.fromkeys(Record.__struct_fields__) | dict(
            zip(reversed(Record.__struct_fields__), reversed(Record.__struct_defaults__), strict=False)
        )
        return defaults | lines()[name]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with ExitStack() as stack:
        (_, one), (_, other) = stack.enter_context(double()), stack.enter_context(double())
        _, emulated = stack.enter_context(headgate("engine", "--emulate", PROFILE, "--port", "0"))
        tags = {"version": "7", "quantization": "fp8", "gpu_type": "h100"}
        config = {
            "listen": {"port": 0},
            "replicas": [
                {"id": "one", "url": one, "slots": 1, "model": "double"},
                {"id": "other", "url": other, "slots": 1, "model": "double"},
                {
                    "id": "emulated",
                    "url": emulated,
                    "slots": 8,
                    "model": "small",
                    "served_as": f"emulated-{PROFILE}",
                    "tags": tags,
                },
            ],
            "models": [
                {
                    "name": "chat",
                    "versions": [{"name": "v1", "model": "double", "weight": 1}, {"name": "v2", "model": "small"}],
                }
            ],
            "tenants": {"acme": {"key_sha256": [hash_key("k")], "tier": "premium"}},
            "admin_keys": ADMIN_KEYS,
            "anonymous": {"allowed": True},
            "routing": {"algorithm": "least_connections", "exploration": 0},
            "warm": {"before_use": False, "keep_alive_s": 0},
            "observe": {"otlp_endpoint": "http://127.0.0.1:9"},  # nobody is there: requests have traces all the same
        }
        path = tmp_path_factory.mktemp("record") / "headgate.yaml"
        path.write_text(json.dumps(config))
        _, url = stack.enter_context(headgate("serve", "--config", str(path)))
        yield Stage(url, {"one": one, "other": other})


def compare(record: dict[str, Any], **expected: object) -> None:
    compared.update(expected)
    assert {name: record[name] for name in expected} == expected


def between(record: dict[str, Any], **bounds: tuple[float, float]) -> None:
    compared.update(bounds)
    for name, (low, high) in bounds.items():
        assert low <= record[name] <= high, f"{name} is {record[name]}, expected {low} to {high}"


def test_replicas_that_nobody_warmed_are_cold_to_their_first_request_only(stage: Stage) -> None:
    """First in this file: the doubles have not been asked for anything yet."""
    met: set[str] = set()
    for number in range(6):
        assert stage.ask(f"early-{number}", chat("n=2", model="double")).status == 200
        record = stage.record(f"early-{number}")
        compare(record, cold=record["replica"] not in met)
        met.add(record["replica"])
    assert stage.ask("own", chat("hello", model="small", max_tokens=2)).status == 200
    compare(stage.record("own"), cold=False)  # our own engine is ready only when it has been warmed up


def test_a_streamed_answer(stage: Stage) -> None:
    prompt = " ".join(f"word{n}" for n in range(300))
    body = chat(prompt, model="small", stream=True, stream_options={"include_usage": True})
    answer = stage.ask(
        "streamed", body,
        authorization="Bearer k", x_headgate_task="extract", traceparent=f"00-{TRACE}-{PARENT}-01",
    )  # fmt: skip
    record = stage.record("streamed")
    compare(
        record,
        id="streamed", lane="slow", tenant="acme", tier="premium",
        task="extract", cap=96, model="small", version="7", drawn_from="", choice="", replica="emulated",
        quantization="fp8", gpu_type="h100", stream=True, operation="chat", outcome="completed", status=200, message="",
        stop="", attempts=1, failed=(), failures=0, ahead=None, parent=PARENT, stalled_s=0.0,
        prompt_tokens=answer.usage["prompt_tokens"], output_tokens=answer.usage["completion_tokens"], cached_tokens=0,
    )  # fmt: skip
    compared.update(("trace", "reason", "seen", "engine", "gaps"))
    assert record["trace"].startswith(f"00-{TRACE}-")
    assert record["trace"][36:52] != PARENT
    assert record["reason"]
    assert "emulated" in [one["replica_id"] for one in record["seen"]]
    ttft_s, e2e_s = answer.first_at - answer.sent_at, answer.ended_at - answer.sent_at
    between(
        record,
        at=(answer.sent_at, answer.sent_at + NEAR_S), wall=(answer.sent_wall, answer.sent_wall + NEAR_S),
        ttft_s=(ttft_s - NEAR_S, ttft_s), e2e_s=(e2e_s - NEAR_S, e2e_s), accept_s=(1e-6, NEAR_S),
        first_s=(record["ttft_s"] - NEAR_S, record["ttft_s"]), end_s=(0.0, NEAR_S), queue_s=(0.0, NEAR_S),
        retry_s=(0.0, 0.0), stream_s=(e2e_s - ttft_s - NEAR_S, e2e_s - ttft_s + NEAR_S), max_gap_s=(0.002, e2e_s),
    )  # fmt: skip
    between(record, tpot_s=(0.99 * record["stream_s"] / 95, 1.01 * record["stream_s"] / 95))
    assert record["output_tokens"] == 96
    assert sum(record[stage] for stage in STAGES) == pytest.approx(record["e2e_s"], abs=1e-6)
    assert record["gaps"][0]["took_s"] == record["max_gap_s"]
    assert [gap["took_s"] for gap in record["gaps"]] == sorted((gap["took_s"] for gap in record["gaps"]), reverse=True)
    timings = record["engine"]
    assert timings["prefill_chunks"] >= 1
    assert 0 < timings["prefill_ms"] / 1e3 <= record["first_s"]
    assert timings["decode_ms"] / 1e3 == pytest.approx(record["stream_s"], abs=NEAR_S)


def test_what_an_engine_found_in_its_cache_is_as_it_says(stage: Stage) -> None:
    prompt = " ".join(f"thing{n}" for n in range(600))
    for name in ("uncached", "cached", "cached-stream"):
        streamed = {"stream": True, "stream_options": {"include_usage": True}} if "stream" in name else {}
        answer = stage.ask(name, chat(prompt, model="small", max_tokens=4, **streamed))
        told = answer.usage["prompt_tokens_details"]["cached_tokens"]
        compare(stage.record(name), cached_tokens=told, prompt_tokens=answer.usage["prompt_tokens"], cap=0)
        assert (told > 300) == ("uncached" not in name)


@pytest.mark.parametrize("choices", [1, 3])
def test_how_many_answers_were_asked_for(stage: Stage, choices: int) -> None:
    assert stage.ask(f"choices-{choices}", chat("n=1", model="small", max_tokens=2, n=choices)).status == 200
    compare(stage.record(f"choices-{choices}"), choices=choices)


def test_which_version_answered_and_why_and_what_was_asked(stage: Stage) -> None:
    assert stage.ask("drawn", chat("n=1", model="chat")).status == 200
    record = stage.record("drawn")
    compare(record, model="chat", version="v1", drawn_from="chat", stream=False)
    compared.add("choice")
    assert "v1" in record["choice"]
    body = {"model": "small", "prompt": "Hello", "max_tokens": 1}
    assert stage.ask("text", body, path="/v1/completions").status == 200
    compare(stage.record("text"), operation="text_completion", tier="free", tenant="anonymous", parent="")


def test_a_request_that_waits_says_how_long_and_behind_whom(stage: Stage) -> None:
    with ExitStack() as stack:
        for number in range(2):  # a slot each
            stack.enter_context(sent(stage, f"held-{number}", "n=40 itl=20"))
        eventually(lambda: len(running(stage)) == 2)
        began = time.monotonic()
        stack.enter_context(sent(stage, "waits", "n=1"))
        eventually(lambda: waiting(stage) == 1)
        stack.enter_context(sent(stage, "waits-too", "n=1"))
        eventually(lambda: waiting(stage) == 2)
        first, second = stage.record("waits"), stage.record("waits-too")
        took_s = time.monotonic() - began
    between(first, queue_s=(0.05, took_s))
    assert first["queue_s"] == pytest.approx(first["e2e_s"], abs=NEAR_S)
    assert first["ahead"] is None  # nobody else was waiting
    assert (second["ahead"]["requests"], second["ahead"]["tenant"]) == (1, "anonymous")
    compared.add("ahead")


def test_replicas_that_failed_before_are_in_the_record(stage: Stage) -> None:
    ask(f"{stage.engines['one']}/refuse", b"1")
    for number in range(20):  # until that one is asked
        answer = stage.ask(f"refused-{number}", chat("n=2", model="double"))
        record = stage.record(f"refused-{number}")
        if record["failures"]:
            break
    compare(record, replica="other", outcome="completed", status=200, failures=1, attempts=1)  # no fault, no attempt
    (failed,) = record["failed"]
    assert (failed["replica"], failed["refused"]) == ("one", True)
    between(record, retry_s=(1e-6, answer.ended_at - answer.sent_at))
    with sent(stage, "broken", "ttft=5000 n=1"):
        eventually(lambda: len(running(stage)) == 1)
        (broken,) = running(stage)
        (left,) = set(stage.engines) - {broken}
        time.sleep(1.2)  # what breaks off sooner on a connection that was used before is sent once more, and no failure
        ask(f"{stage.engines[broken]}/drop", b"")
        eventually(lambda: running(stage) == {left})
    record = stage.record("broken")
    compare(record, replica=left, outcome="cancelled", failures=1, attempts=2, status=499)
    (failed,) = record["failed"]
    assert (failed["replica"], failed["refused"], failed["outcome"]) == (broken, False, "replica_failed")
    between(record, retry_s=(1.0, 5.0))
    assert failed["took_s"] == pytest.approx(record["retry_s"], abs=NEAR_S)
    assert sum(record[stage] for stage in STAGES) == pytest.approx(record["e2e_s"], abs=1e-6)


def test_what_was_refused_and_what_was_cut_short_say_so(stage: Stage) -> None:
    assert stage.ask("invalid", chat("n=1", model="double", max_tokens=0)).status == 400
    record = stage.record("invalid")
    compare(record, outcome="invalid", status=400, replica=None, attempts=0, output_tokens=0, ttft_s=None, tpot_s=None)
    assert "max_tokens" in record["message"]
    assert (
        stage.ask("loop", chat("n=100000 itl=0.1", model="double", stream=True), x_headgate_task="chat").status == 200
    )
    compare(stage.record("loop"), stop="repetition", outcome="completed")


def test_a_client_that_reads_late_is_known_to_have_been_behind(stage: Stage) -> None:
    """Nothing of a stream of 16 MB is read for 0.8 s; kernels hold a few of them."""
    for engine in stage.engines.values():
        ask(f"{engine}/word", b"w" * 65_536)
    try:
        with sent(stage, "late", "n=256 itl=1", buffer=16_384) as client:
            time.sleep(0.8)
            client.settimeout(10)
            text = b""
            while not text.endswith(b"\r\n0\r\n\r\n"):
                text = text[-16:] + client.recv(1_000_000)
    finally:
        for engine in stage.engines.values():
            ask(f"{engine}/word", b"w ")
    record = stage.record("late")
    compare(record, outcome="completed", output_tokens=256)
    between(record, stalled_s=(0.3, record["e2e_s"]))


def test_no_field_of_a_record_is_left_unseen(request: pytest.FixtureRequest) -> None:
    """Last in this file. A new field is compared with something here, or named in ELSEWHERE with the test that does."""
    tests = {name for name in globals() if name.startswith("test_")}
    if tests <= {item.name for item in request.session.items}:  # all of them were run
        assert set(Record.__struct_fields__) == compared | set(ELSEWHERE)
        assert not compared & set(ELSEWHERE)


@contextmanager
def sent(stage: Stage, name: str, content: str, buffer: int | None = None) -> Iterator[socket.socket]:
    """A stream in the lane that may wait, asked for and not read."""
    place = urlsplit(stage.url)
    body = json.dumps(chat(content, model="double", stream=True, service_tier="flex")).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-request-id: {name}\r\nx-headgate-task: other\r\n"
    with socket.socket() as client:
        if buffer is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        client.connect((place.hostname, place.port))
        client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        yield client


def running(stage: Stage) -> set[str]:
    """Doubles that have something to do."""
    return {name for name, url in stage.engines.items() if seen(url)["running"]}


def waiting(stage: Stage) -> int:
    lanes: dict[str, Any] = {
        lane["name"]: lane for lane in json.loads(ask(f"{stage.url}/admin/state", headers=ADMIN)[1])["lanes"]
    }
    return sum(int(lane["waiting"]) for lane in lanes.values())
