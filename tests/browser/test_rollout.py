"""Versions on the page: what is being tried out can be seen, and taken back."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvloop
from playwright.sync_api import expect

from headgate.policy.rollout.rollout import RolloutStep
from tests.browser.visit import chromium, clean_visit
from tests.gateway.versions import Scene, scene

pytestmark = pytest.mark.timeout(60)


@contextmanager
def running() -> Iterator[Scene]:
    """A gateway in a thread of its own, with a version at 25 %."""
    ready, stop, found = threading.Event(), threading.Event(), list[Scene]()

    async def run() -> None:
        async with scene() as it:
            assert isinstance(it.rollouts.start("chat", "v2", "split", 0.25), RolloutStep)
            it.instruments.start()
            found.append(it)
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: uvloop.run(run()))
    thread.start()
    try:
        assert ready.wait(20)
        yield found[0]
    finally:
        stop.set()
        thread.join()


def test_a_version_can_be_seen_and_rolled_back() -> None:
    with chromium() as browser, running() as it, clean_visit(browser, it.url) as visit:
        panel = visit.page.locator("#rollouts")
        expect(panel).to_contain_text("v2 split, 25 %")
        expect(panel.locator("tbody").first.locator("tr")).to_have_count(2)
        panel.get_by_role("button", name="Roll back").click()
        expect(panel).to_contain_text("chat: rolled back by hand.")
        expect(panel).to_contain_text("v2 rolled back, 0 %")
        expect(panel.get_by_role("button", name="Promote")).to_be_hidden()
