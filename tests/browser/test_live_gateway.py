"""The page in front of a real gateway while requests go through it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright (its browsers are not needed)")

from playwright.sync_api import Browser

from tests.browser.visit import chromium, clean_visit
from tests.engine.process import ask
from tests.gateway.test_gateway import chat, double, gateway

pytestmark = pytest.mark.timeout(120)  # a browser on a busy machine takes its time

ORDINARY = "ttft=20 itl=4 n=12"
SLOW = "ttft=1500 itl=4 n=12"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@contextmanager
def load(url: str) -> Iterator[None]:
    """A few clients that each ask again as soon as they are answered."""
    over = threading.Event()

    def client(content: str) -> None:
        while not over.is_set():
            ask(f"{url}/v1/chat/completions", chat(content, stream=True))

    clients = [threading.Thread(target=client, args=(content,)) for content in (ORDINARY, ORDINARY, ORDINARY, SLOW)]
    for thread in clients:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in clients:
            thread.join()


def test_it_fills_up_and_follows_the_load_and_explains_the_slow_request(browser: Browser, tmp_path: Path) -> None:
    with double() as (_, engine), gateway(tmp_path, {}, engine) as url, clean_visit(browser, url) as seen:
        seen.page.get_by_role("heading", name="No traffic yet").wait_for()
        assert seen.page.locator("#replica-rows tr").count() == 1
        with load(url):
            seen.until("document.getElementById('lanes').checkVisibility()")
            seen.until("document.querySelectorAll('[data-lane=fast] .line.p99').length > 0")
            for selector in ("#vitals", "[data-lane=fast] .facts"):
                seen.changes(selector)
            row = seen.page.locator("#slow-rows tr").first
            row.wait_for()
            row.get_by_role("button").press("Enter")
            table = seen.page.locator("#request table.waterfall")
            table.wait_for()
            assert table.locator("[data-main] th").inner_text() in ("prefill", "engine queue")
            shares = table.locator("tbody .share").all_inner_texts()
            assert 97 <= sum(int(share.split()[0]) for share in shares) <= 103
            promised = seen.page.locator("[data-lane=fast] .promise-label").all_text_contents()
            assert [text.rstrip(" ↑") for text in promised] == ["p99 ≤ 2 s", "p50, p95 ≤ 500 ms"]
            for figure in ("TPOT", "End to end", "Queue"):
                seen.page.keyboard.press("Escape")
                seen.page.get_by_role("group", name="Figure").get_by_role("radio", name=figure).check()
            assert "NaN" not in seen.page.locator("body").inner_text()
            assert "undefined" not in seen.page.locator("body").inner_text()
