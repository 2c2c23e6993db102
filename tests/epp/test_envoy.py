"""A real Envoy asks the endpoint picker where each request may go, and sends it there itself."""

import hashlib
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headgate.config.file import parse
from tests.engine.process import ask
from tests.export import proxies
from tests.export.proxies import eventually, free_port
from tests.gateway.test_gateway import chat, double, gateway, post, seen

pytest.importorskip("grpc", reason="no grpcio (pip install 'headgate[epp]')")
pytestmark = pytest.mark.timeout(90)


@dataclass
class Site:
    url: str
    """Envoy's."""
    gateway: str
    engines: tuple[str, ...]
    full: bool
    processes: tuple[subprocess.Popen[str], ...]

    def kill(self, number: int) -> None:
        self.processes[number].kill()
        self.processes[number].wait()

    def records(self) -> dict[str, dict[str, Any]]:
        """By request id."""
        status, body = ask(f"{self.gateway}/admin/records?limit=1000")
        assert status == 200, body
        return {record["id"]: record for record in map(json.loads, body.splitlines())}

    def record(self, request_id: str) -> dict[str, Any]:
        eventually(lambda: request_id in self.records())
        return self.records()[request_id]

    def open_now(self) -> int:
        state: dict[str, Any] = json.loads(ask(f"{self.gateway}/admin/ledger")[1])
        return int(state["records_open"])


@contextmanager
def site(folder: Path, full: bool = False, engines: int = 2, slots: int = 8, **config: Any) -> Iterator[Site]:
    from headgate.export.envoy_picker import envoy_with_picker

    with double() as (one, first), double() as (two, second):
        urls = (first, second)[:engines]
        picker, port = free_port(), free_port()
        chosen = parse(json.dumps({"replicas": [{"url": url} for url in urls]}), "x")
        with (
            gateway(folder, {"epp": {"port": picker}, **config}, *urls, slots=slots) as where,
            proxies.envoy(folder, envoy_with_picker(chosen, f"127.0.0.1:{picker}", port, full)),
        ):
            url = f"http://127.0.0.1:{port}"
            eventually(lambda: proxies.ready(url))
            eventually(lambda: ask(f"{where}/health/ready")[0] == 200)
            yield Site(url, where, urls, full, (one, two))


@pytest.fixture(scope="module", params=["lean", "full"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("epp"), full=request.param == "full") as made:
        yield made


def test_an_answer_in_one_piece_and_a_stream(served: Site) -> None:
    status, body = ask(f"{served.url}/v1/chat/completions", chat("n=3"))
    assert (status, json.loads(body)["choices"][0]["message"]["content"]) == (200, "w w w ")
    status, body = ask(f"{served.url}/v1/chat/completions", chat("n=3", stream=True))
    assert status == 200
    assert body.count(b"data: ") >= 4
    assert body.rstrip().endswith(b"[DONE]")


def test_each_leaves_a_record_with_what_the_proxy_showed(served: Site) -> None:
    ask(f"{served.url}/v1/chat/completions", chat("ttft=100 itl=20 n=10", stream=True), {"x-request-id": "streamed"})
    record = served.record("streamed")
    assert (record["outcome"], record["lane"]) == ("completed", "fast")
    assert record["e2e_s"] > 0.25, "it ended with the answer, not with the choice"
    if served.full:
        assert 0.09 < record["ttft_s"] < record["e2e_s"] - 0.1
    else:
        assert record.get("ttft_s") is None
    ask(f"{served.url}/v1/chat/completions", chat("n=7"), {"x-request-id": "whole"})
    assert served.record("whole").get("output_tokens") == 7 or not served.full


def test_what_computes_nothing_goes_to_any_replica(served: Site) -> None:
    status, body = ask(f"{served.url}/v1/models")
    assert (status, json.loads(body)["data"][0]["id"]) == (200, "double")


def test_a_long_body_goes_through_in_pieces(served: Site) -> None:
    text = "n=2 " + "word " * 60_000
    status, body = ask(f"{served.url}/v1/completions", {"model": "double", "prompt": text}, {"x-request-id": "long"})
    assert status == 200, body
    assert served.record("long")["outcome"] == "completed"


def test_bad_bodies_and_unknown_models_get_the_gateways_errors(served: Site) -> None:
    status, body = ask(f"{served.url}/v1/chat/completions", {"messages": 3})
    assert (status, json.loads(body)["error"]["type"]) == (400, "invalid_request_error")
    status, body = ask(f"{served.url}/v1/chat/completions", chat("n=1") | {"model": "another"})
    assert (status, json.loads(body)["error"]["code"]) == (404, "model_not_found")


def test_a_client_that_leaves_frees_its_room(served: Site) -> None:
    connection = post(served.url, chat("itl=20 n=100000", stream=True))
    assert connection.recv(1)
    eventually(lambda: served.open_now() == 1)
    connection.close()
    eventually(lambda: served.open_now() == 0)
    eventually(lambda: sum(seen(engine)["running"] for engine in served.engines) == 0)


def test_only_endpoints_of_the_subset_are_chosen(served: Site) -> None:
    wanted = served.engines[1].removeprefix("http://")
    before = seen(served.engines[1])["seen"]
    for number in range(6):
        headers = {"x-gateway-destination-endpoint-subset": f"{wanted}, 10.0.0.9:1", "x-request-id": f"subset-{number}"}
        assert ask(f"{served.url}/v1/chat/completions", chat("n=1"), headers)[0] == 200
    assert seen(served.engines[1])["seen"] - before >= 6
    headers = {"x-gateway-destination-endpoint-subset": "10.0.0.9:1"}
    assert ask(f"{served.url}/v1/chat/completions", chat("n=1"), headers)[0] == 503


def test_a_request_waits_for_room_and_too_many_are_refused(tmp_path: Path) -> None:
    lanes = {"fast": {"wait_bound_s": 5.0}, "slow": {"wait_bound_s": 5.0, "queue_limit": 2}}
    with site(tmp_path, engines=1, slots=1, lanes=lanes) as made:
        first = post(made.url, chat("ttft=1000 n=1", stream=True))
        eventually(lambda: seen(made.engines[0])["running"] == 1)
        waits = [post(made.url, chat("n=1")) for _ in range(2)]
        eventually(lambda: made.open_now() == 3)
        assert seen(made.engines[0])["running"] == 1, "the others wait in the picker"
        status, body, headers = asked(made.url)
        assert (status, "retry-after" in headers) == (503, True), body
        assert headers["x-llm-d-request-dropped-reason"] == "saturated"
        for connection in (first, *waits):
            assert b"200 OK" in connection.recv(100)
            connection.close()


def test_a_tenant_over_its_limit_and_a_wrong_key(tmp_path: Path) -> None:
    key = "a key of one tenant"
    tenants = {"one": {"key_sha256": [hashlib.sha256(key.encode()).hexdigest()], "requests_per_min": 1}}
    with site(tmp_path, engines=1, tenants=tenants) as made:
        assert asked(made.url)[0] == 401
        assert asked(made.url, {"authorization": f"Bearer {key}"})[0] == 200
        status, _, headers = asked(made.url, {"authorization": f"Bearer {key}"})
        assert (status, headers["x-llm-d-request-dropped-reason"]) == (429, "rate_limited")
        assert {"retry-after", "x-ratelimit-limit-requests"} <= set(headers)


def test_the_next_endpoint_takes_over_where_one_cannot_be_reached(tmp_path: Path) -> None:
    """Before the prober notices: Envoy itself goes on to the second of the list."""
    with site(tmp_path, health={"probe_interval_s": 3600.0}) as made:
        asked(made.url)
        made.kill(0)
        answers = [asked(made.url) for _ in range(8)]
        assert {status for status, _, _ in answers} == {200}, [one for one in answers if one[0] != 200]


def asked(url: str, headers: dict[str, str] | None = None) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and headers of a short chat."""
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(chat("n=1")).encode(),
        {"content-type": "application/json", **(headers or {})},
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read(), {name.lower(): value for name, value in answer.headers.items()}
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), {name.lower(): value for name, value in error.headers.items()}
