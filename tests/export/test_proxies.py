"""What `headgate export nginx|envoy` prints, in real proxies: tokens come one by one, and who leaves is gone."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.config.file import parse
from headgate.config.gateway import GatewayConfig
from headgate.export.envoy import envoy
from headgate.export.nginx import nginx
from headgate.export.proxy import facing
from tests.engine.process import ask
from tests.export import proxies
from tests.export.proxies import eventually, free_port
from tests.gateway.test_gateway import chat, double, gateway, post, seen

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with double() as (_, url):
        yield url


@pytest.fixture(scope="module")
def behind(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with gateway(tmp_path_factory.mktemp("gateway"), {}, engine, slots=64) as where:
        yield where


@pytest.fixture(scope="module", params=["nginx", "envoy"])
def url(request: pytest.FixtureRequest, behind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port, folder = free_port(), tmp_path_factory.mktemp("proxy")
    it = facing(GatewayConfig(), [behind.removeprefix("http://")])
    started = (
        proxies.nginx(folder, nginx(it, port)) if request.param == "nginx" else proxies.envoy(folder, envoy(it, port))
    )
    with started:
        where = f"http://127.0.0.1:{port}"
        eventually(lambda: proxies.ready(where))
        yield where


def test_tokens_arrive_one_by_one(url: str) -> None:
    """Three tries: a busy machine may delay a token, but nothing takes a lump apart again."""
    assert max(reads(url) for _ in range(3)) > 20


def reads(url: str) -> int:
    """In how many pieces 25 tokens arrive that are sent 20 ms apart."""
    connection, count, data = post(url, chat("ttft=50 itl=20 n=25", stream=True)), 0, b""
    while b"[DONE]" not in data:
        data += (more := connection.recv(65536))
        assert more
        count += 1
    connection.close()
    return count


PHASES = {"prefill": "ttft=30000", "decode": "itl=20 n=100000"}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_disconnect_reaches_the_engine_within_200_ms(url: str, engine: str, phase: str, stream: bool) -> None:
    before = len(seen(engine)["closed_at"])
    connection = post(url, chat(PHASES[phase], stream=stream))
    eventually(lambda: seen(engine)["running"] == 1)
    if phase == "decode" and stream:
        assert connection.recv(1)
    left_at = time.monotonic()
    connection.close()
    eventually(lambda: len(seen(engine)["closed_at"]) > before)
    assert seen(engine)["closed_at"][-1] - left_at < 0.2
    eventually(lambda: seen(engine)["running"] == 0)


def test_refusals_and_request_ids_come_through_unchanged(url: str, behind: str) -> None:
    through, direct = (ask(f"{it}/v1/chat/completions", {"messages": []}) for it in (url, behind))
    assert through[0] == direct[0] == 400
    assert through[1] == direct[1]
    answer = ask(f"{url}/v1/chat/completions", chat("n=2"), {"x-request-id": "known-id"})
    assert answer[0] == 200
    assert ask(f"{behind}/admin/requests/known-id")[0] == 200


def test_through_a_proxy_nobody_is_on_this_machine(url: str) -> None:
    status, body = ask(f"{url}/admin/state")
    assert status == 401
    assert b"admin key" in body


def test_a_gateway_that_is_gone_is_a_plain_error_and_the_other_takes_over(tmp_path: Path, engine: str) -> None:
    """With two gateways, and of one nothing left: no client notices."""
    with gateway(tmp_path, {}, engine) as where:
        gone = f"127.0.0.1:{free_port()}"
        port = free_port()
        site = nginx(facing(GatewayConfig(), [gone, where.removeprefix("http://")]), port)
        with proxies.nginx(tmp_path, site):
            there = f"http://127.0.0.1:{port}"
            eventually(lambda: proxies.ready(there))
            assert {ask(f"{there}/v1/chat/completions", chat("n=1"))[0] for _ in range(6)} == {200}


def test_envoy_accepts_it_also_with_tls_to_the_gateway(tmp_path: Path) -> None:
    config = parse(json.dumps({"listen": {"tls": {"cert": "/c", "key": "/k"}}}), "x")
    for number, it in enumerate((facing(GatewayConfig()), facing(config, ["gateway.internal:8443", "[::1]:9"]))):
        path = tmp_path / f"{number}.yaml"
        path.write_text(envoy(it))
        argv = [proxies.envoy_binary(), "--mode", "validate", "-c", str(path), "-l", "error"]
        checked = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stderr
        assert "OK" in checked.stdout + checked.stderr


def test_nginx_accepts_it_also_with_tls_to_the_gateway(tmp_path: Path) -> None:
    config = parse(json.dumps({"listen": {"tls": {"cert": "/c", "key": "/k"}}}), "x")
    port = free_port()
    with proxies.nginx(tmp_path, nginx(facing(config, ["127.0.0.1:9"]), port, "llm.example.com")):
        eventually(lambda: _status(f"http://127.0.0.1:{port}/") == 502)


def _status(url: str) -> Any:
    try:
        return ask(url)[0]
    except OSError:
        return None
