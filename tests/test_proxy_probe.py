"""`headgate doctor --url` through a real nginx: one that passes everything on, and ones that do not."""

import io
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from headgate.cli import client
from headgate.cli.proxy_probe import Look, ProbeReport, Tries, probe
from headgate.config.gateway import GatewayConfig
from headgate.export.nginx import nginx
from headgate.export.proxy import facing
from tests.export import proxies
from tests.export.proxies import eventually, free_port
from tests.gateway.test_gateway import double, gateway
from tests.keys import hash_key

pytestmark = pytest.mark.timeout(60)

TRIES = Tries(streamed="ttft=20 itl=20 n=30", left="ttft=20 itl=20 n=400")
TENANT = {"tenants": {"t": {"key_sha256": [hash_key("k")]}}, "admin_keys": [hash_key("a")]}


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with double() as (_, url):
        yield url


@pytest.fixture(scope="module")
def own(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with gateway(tmp_path_factory.mktemp("gateway"), {}, engine, slots=64) as where:
        yield where


def settings(own: str, port: int) -> str:
    return nginx(facing(GatewayConfig(), [own.removeprefix("http://")]), port)


@contextmanager
def behind(folder: Path, own: str, change: dict[str, str] | None = None) -> Iterator[str]:
    """nginx with our settings, some of them changed to what does harm."""
    port = free_port()
    site = settings(own, port)
    for ours, theirs in (change or {}).items():
        assert ours in site
        site = site.replace(ours, theirs)
    with proxies.nginx(folder, site):
        url = f"http://127.0.0.1:{port}"
        eventually(lambda: proxies.ready(url))
        yield url


def doctor(url: str, own: str | None = None, key: str | None = None, api_key: str | None = None) -> tuple[bool, str]:
    """What it prints, and whether it is content."""
    out = io.StringIO()

    def through(where: str, look: Look) -> ProbeReport:
        return probe(where, api_key, look, TRIES)

    console = Console(file=out, width=200, highlight=False, color_system=None)
    content = client.doctor(url, key, console, own=own, probe=through)
    return content, out.getvalue()


BUFFERS = {"proxy_buffering off;": "proxy_buffering on; proxy_ignore_headers X-Accel-Buffering;"}
HTTP_1_0 = {"proxy_http_version 1.1;": "proxy_http_version 1.0;"}  # nginx's default
COMPRESSES = {"gzip off;": "gzip on; gzip_types text/event-stream; gzip_proxied any; gzip_min_length 1;"}
HIDES = {"proxy_ignore_client_abort off;": "proxy_ignore_client_abort on;"}


def test_our_own_settings_pass_everything_on(tmp_path: Path, own: str) -> None:
    with behind(tmp_path, own) as url:
        _, said = doctor(url, own)
    assert "✓ tokens arrive one by one: 3" in said
    assert "✓ a client that leaves is noticed: after" in said
    assert "not tried" not in said


@pytest.mark.parametrize("how", [BUFFERS | HTTP_1_0, BUFFERS | COMPRESSES], ids=["buffers", "compresses"])
def test_a_proxy_that_holds_tokens_back(tmp_path: Path, own: str, how: dict[str, str]) -> None:
    with behind(tmp_path, own, how) as url:
        content, said = doctor(url, own)
    assert not content
    assert "✗ critical tokens: something between here and the gateway holds tokens back: nginx" in said
    assert "`headgate export nginx` prints settings" in said
    assert "✓ a client that leaves is noticed" in said


def test_a_proxy_that_compresses_and_holds_nothing_back(tmp_path: Path, own: str) -> None:
    with behind(tmp_path, own, COMPRESSES) as url:
        _, said = doctor(url, own)
    assert "✓ tokens arrive one by one: 3" in said


def test_a_proxy_that_hides_disconnects(tmp_path: Path, own: str) -> None:
    with behind(tmp_path, own, HIDES) as url:
        content, said = doctor(url, own)
    assert not content
    assert "✗ critical disconnects: something between here and the gateway hides that a client has left" in said
    assert "proxy_ignore_client_abort off" in said
    assert "✓ tokens arrive one by one" in said


def test_without_a_proxy(own: str) -> None:
    _, said = doctor(own)
    assert "✓ tokens arrive one by one: 3" in said
    assert "✓ a client that leaves is noticed: after" in said


def test_keys_and_what_is_said_when_they_are_missing(tmp_path: Path, engine: str) -> None:
    (tmp_path / "n").mkdir()
    with gateway(tmp_path, TENANT, engine) as own, behind(tmp_path / "n", own) as url:
        _, said = doctor(url, key="a")  # the admin API through the proxy, with its key
        assert "not tried: tokens and disconnects: a tenant's key is needed" in said
        _, said = doctor(url, key="a", api_key="k")
        assert "✓ tokens arrive one by one" in said
        assert "✓ a client that leaves is noticed" in said


def test_a_gateway_whose_records_are_not_shown() -> None:
    """An answer that was long in coming and then all there: without the gateway's word only probably held back."""

    def look(path: str) -> tuple[int, dict[str, Any]]:
        return 401, {}

    with double() as (_, engine):
        slow = Tries(streamed="ttft=1100 n=30", left="ttft=50 n=2")
        told = probe(engine, None, look, slow)
        assert [it["severity"] for it in told.findings] == ["warning"]
        assert "probably holds tokens back" in told.findings[0]["cause"]
        assert ["--key" in line for line in told.skipped] == [True]
        steady = probe(engine, None, look, TRIES)
        assert not steady.findings
        assert ["--key" in line for line in steady.skipped] == [True, True]
        short = probe(engine, None, look, Tries(streamed="n=2", left="n=2"))
        assert "only" in short.skipped[0]


def test_what_is_no_gateway() -> None:
    told = probe(f"http://127.0.0.1:{free_port()}", None, lambda path: (404, {}))
    assert "tokens and disconnects: " in told.skipped[0]
    assert "refused" in told.skipped[0]


def test_the_command_itself(own: str) -> None:
    argv = [sys.executable, "-m", "headgate", "doctor", "--url", own]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert "not tried" in done.stdout or "✓ tokens arrive" in done.stdout  # a double says little unless told to
    assert not done.stderr
    quiet = subprocess.run([*argv, "--no-probe"], capture_output=True, text=True, check=False)
    assert "tokens" not in quiet.stdout
