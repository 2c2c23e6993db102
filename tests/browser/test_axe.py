"""No violation that axe-core knows: in each state of the page, light and dark, wide and on a phone; nor in /docs, nor
on the engine's own page."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright (its browsers are not needed)")

from playwright.sync_api import Browser, Page

from tests.browser.axe import needed, violations
from tests.browser.visit import chromium, clean_visit, scene, visit
from tests.engine.process import ask, headgate
from tests.gateway.test_gateway import chat, double, gateway

pytestmark = pytest.mark.timeout(120)  # a browser on a busy machine takes its time
SCHEMES = pytest.mark.parametrize("scheme", ["light", "dark"])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    needed()
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def fleet() -> Iterator[str]:
    with scene("--replicas", "40") as (_, url):
        yield url


def table(page: Page) -> None:
    page.get_by_role("radio", name="Table").check()


def request(page: Page) -> None:
    page.locator("#slow-rows tr").first.click()
    page.locator("#request table.waterfall").wait_for()


def trial(page: Page) -> None:
    page.keyboard.press("t")


def keys(page: Page) -> None:
    page.keyboard.press("?")


def a_day(page: Page) -> None:
    page.get_by_role("radio", name="24 h").check()


STATES: list[Callable[[Page], None]] = [lambda _: None, table, request, trial, keys, a_day]


@SCHEMES
@pytest.mark.parametrize("width", [360, 1600])
def test_a_busy_page_in_each_state(browser: Browser, fleet: str, scheme: str, width: int) -> None:
    for state in STATES:
        with clean_visit(browser, fleet, width, scheme) as seen:
            seen.until("!document.getElementById('blame').hidden")
            state(seen.page)
            assert violations(seen) == [], state.__name__


@SCHEMES
def test_a_page_without_traffic(browser: Browser, scheme: str) -> None:
    with scene("--empty") as (_, url), clean_visit(browser, url, scheme=scheme) as seen:
        assert violations(seen) == []


@SCHEMES
def test_a_page_that_asks_for_a_key(browser: Browser, scheme: str) -> None:
    with scene("--key", "sesame") as (_, url), visit(browser, url, scheme=scheme) as seen:
        seen.page.get_by_label("Admin key", exact=True).wait_for()
        assert violations(seen) == []


@SCHEMES
def test_a_real_gateway_without_its_replica_and_its_docs(browser: Browser, tmp_path: Path, scheme: str) -> None:
    with double() as (engine, url_of_engine), gateway(tmp_path, {}, url_of_engine) as url:
        assert ask(f"{url}/v1/chat/completions", chat("n=3", stream=True))[0] == 200
        with clean_visit(browser, url, scheme=scheme) as seen:
            assert violations(seen) == []
            engine.send_signal(signal.SIGKILL)
            engine.wait()
            seen.until("document.getElementById('verdict').dataset.state === 'critical'")
            assert violations(seen) == []
        with visit(browser, f"{url}/docs", scheme=scheme) as seen:
            assert violations(seen) == []
            seen.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
            assert violations(seen) == []
            assert seen.errors == []


@SCHEMES
def test_the_page_of_an_engine(browser: Browser, scheme: str) -> None:
    with (
        headgate("engine", "--emulate", "h100-llama3-8b", "--port", "0") as (_, url),
        visit(browser, url, scheme=scheme) as seen,
    ):
        assert violations(seen) == []
        seen.page.wait_for_timeout(2500)  # it renews itself once
        assert seen.errors == []
