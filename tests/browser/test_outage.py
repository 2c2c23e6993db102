"""A total outage, as people see it: on the page, in the terminal, from the doctor."""

import json
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright (its browsers are not needed)")

from playwright.sync_api import Browser
from rich.console import Console

from headgate.cli import client, fleet_client
from headgate.model.clock import monotonic
from tests.browser.visit import chromium, clean_visit
from tests.engine.process import ask
from tests.gateway.test_gateway import chat, double, gateway

pytestmark = pytest.mark.timeout(120)  # a browser on a busy machine takes its time
AT_ONCE_S = 15.0
"""Three probes of one second and a look; the rest is allowed for a busy machine."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def printed(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return re.sub(r"\s+", " ", console.file.getvalue())


def test_that_nothing_can_be_answered_is_said_at_once_everywhere(browser: Browser, tmp_path: Path) -> None:
    with double() as (engine, url_of_engine), gateway(tmp_path, {}, url_of_engine) as url:
        with clean_visit(browser, url) as seen:
            assert seen.text("#verdict-text") == "Idle: no requests in 5 min · 1 of 1 replica"
            assert seen.page.title() == "Idle: no requests in 5 min · 1 of 1 replica – Headgate"
            assert seen.text("#no-troubles") == "Nothing to judge by: no requests in five minutes."
            for _ in range(20):
                assert ask(f"{url}/v1/chat/completions", chat("n=3", stream=True))[0] == 200
            seen.until("document.getElementById('lanes').checkVisibility()")
            seen.until("document.title.startsWith('All promises kept · 1 of 1 replica · 0 refused')")
            assert seen.text("#no-troubles") == "Nothing. Every promise is being kept."
            engine.send_signal(signal.SIGKILL)
            engine.wait()
            began = monotonic()
            seen.until("document.getElementById('verdict').dataset.state === 'critical'", within_s=AT_ONCE_S)
            assert monotonic() - began < AT_ONCE_S
            with ThreadPoolExecutor(10) as clients:
                asked = [clients.submit(ask, f"{url}/v1/chat/completions", chat("n=3", stream=True)) for _ in range(10)]
                assert all(one.result()[0] >= 500 for one in asked)
            line = "Down: 0 of 1 replica answers (connection refused)"
            seen.until("line => document.getElementById('verdict-text').innerText === line", line)
            seen.until("line => document.title.startsWith(line)", line)
            above = "(one, other) => one.getBoundingClientRect().top < other.getBoundingClientRect().top"
            replicas, lanes = "document.getElementById('replicas')", "document.getElementById('lanes')"
            assert seen.page.evaluate(f"({above})({replicas}, {lanes})")  # what is missing stands above the fold
            seen.until("document.querySelector('[data-lane=fast]').dataset.state === 'critical'")
            assert "66.7 % answered" in seen.text("[data-lane=fast] .facts")
            assert seen.page.locator("[data-lane=slow]").get_attribute("data-state") == "idle"
            assert seen.text("[data-lane=slow] .state") == "idle"
            assert seen.page.locator("[data-lane=fast] .p99 dd b").inner_text() == "missed"
            assert seen.page.locator("[data-lane=fast] .p99 dd .of-served").inner_text().startswith("served ")
            assert "undefined" not in seen.text("body")
            seen.page.screenshot(path=str(tmp_path / "outage.png"), full_page=True)
        state = json.loads(ask(f"{url}/admin/slo")[1])
        assert state["verdict"] == {"level": "critical", "text": line}
        assert json.loads(ask(f"{url}/admin/state")[1])["verdict"] == state["verdict"]
        assert (state["worst"], state["outage"], state["fleet"]["down_count"]) == ("critical", True, 1)
        assert {"no_usable_replica", "failed_share"} < {alert["name"] for alert in state["alerts"]}
        assert state["lanes"]["fast"]["availability"]["5m"]["share"] == pytest.approx(2 / 3)
        metrics = ask(f"{url}/metrics")[1].decode()
        assert "headgate_outage 1" in metrics
        assert 'headgate_answers_total{lane="fast",result="failed"} 10' in metrics
        assert 'headgate_answers_total{lane="slow",result="refused"} 0' in metrics
        assert state["alerts"][0]["name"] == "no_usable_replica"
        time.sleep(2.1)  # so long a diagnosis is kept for whoever asks again
        told = Console(file=StringIO(), width=200)
        assert not client.doctor(url, None, told)
        assert "✗ OUTAGE no replica is usable: nothing can be answered" in printed(told)
        assert "✗ fast: 66.7 % of 30 requests answered (0 refused, 10 failed)" in printed(told)
        assert "· slow: idle" in printed(told)
        told = Console(file=StringIO(), width=200)
        fleet_client.show(url, None, told)
        assert printed(told).startswith("OUTAGE no replica is usable")


def test_a_parked_replica_is_no_outage(browser: Browser, tmp_path: Path) -> None:
    with double() as (_, url_of_engine), gateway(tmp_path, {}, url_of_engine) as url:
        assert ask(f"{url}/v1/chat/completions", chat("n=3", stream=True))[0] == 200
        known = json.loads(ask(f"{url}/admin/fleet")[1])["known"][0]["id"]
        assert ask(f"{url}/admin/replicas/{known.replace('/', '%2F').replace(':', '%3A')}/park", b"{}")[0] == 200
        time.sleep(2.5)  # two looks
        state = json.loads(ask(f"{url}/admin/slo")[1])
        assert (state["outage"], state["fleet"]["parked"], state["fleet"]["down"]) == (False, 1, [])
        assert state["alerts"] == []
        told = Console(file=StringIO(), width=200)
        client.doctor(url, None, told)
        assert "no replica is in use, and none is asked for" in printed(told)
        assert "OUTAGE" not in printed(told)
        told = Console(file=StringIO(), width=200)
        fleet_client.show(url, None, told)
        assert "OUTAGE" not in printed(told)
        with clean_visit(browser, url) as seen:
            assert seen.text("#verdict-text") == "Asleep: no replica is in use, 1 parked"
            assert "1 parked" in seen.text("#replica-summary")
