"""Prometheus' own linter has nothing to say about what is scraped: the gateway's page, with every figure there can be,
and the embedded engine's."""

import shutil
import subprocess
from pathlib import Path

import pytest

from headgate.metrics.exposition import Exposition
from headgate.metrics.histogram import Edges, Histogram
from headgate.publish.metrics_page import families
from tests.engine.process import ask, headgate
from tests.gateway.test_gateway import chat, double, gateway

PROMTOOL = shutil.which("promtool")
pytestmark = [
    pytest.mark.skipif(PROMTOOL is None, reason="no promtool: apt-get install prometheus"),
    pytest.mark.timeout(60),
]


def complaints(page: bytes) -> list[str]:
    """What `promtool check metrics` says about this page, each thing once."""
    assert PROMTOOL is not None
    checked = subprocess.run([PROMTOOL, "check", "metrics"], input=page, capture_output=True, timeout=30)
    said = sorted({line for line in checked.stderr.decode().splitlines() if line})
    assert bool(said) == bool(checked.returncode), checked
    return said


def test_every_figure_that_a_gateway_can_show_passes() -> None:
    """Also what only some replicas, machines and settings bring about."""
    page = Exposition()
    edges = Edges((0.1, 1.0))
    made = list(families())
    assert len(made) > 40
    for family in made:
        labels = tuple("x" for _ in family.labels)
        if family.kind == "histogram":
            page.histogram(family, labels, Histogram(edges))
        else:
            page.sample(family, labels, 1)
    assert complaints(page.render()) == []


@pytest.mark.parametrize("instruments", [True, False])
def test_a_gateways_page_passes(tmp_path: Path, instruments: bool) -> None:
    config = {"observe": {"price_per_replica_hour": 2.5, "instruments": instruments}, "hedge": {"enabled": True}}
    with double() as (_, engine), gateway(tmp_path, config, engine) as url:
        for stream in (True, False):
            assert ask(f"{url}/v1/chat/completions", chat("n=3", stream=stream))[0] == 200
        assert ask(f"{url}/v1/chat/completions", b"{")[0] == 400
        page = ask(f"{url}/metrics")[1]
    assert b"headgate_requests_total{" in page
    assert complaints(page) == []


@pytest.mark.model
def test_the_embedded_engines_page_passes() -> None:
    with headgate("engine", "--port", "0") as (_, url):
        assert ask(f"{url}/v1/completions", {"prompt": "Hello", "max_tokens": 2})[0] == 200
        page = ask(f"{url}/metrics")[1]
    assert b"headgate_engine" in page
    assert complaints(page) == []
