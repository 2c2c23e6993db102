"""The page in front of a gateway that runs its own replicas: their lives, and what was decided about them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright (its browsers are not needed)")

from playwright.sync_api import Browser

from tests.browser.visit import chromium, clean_visit
from tests.fleet.test_local_fleet import fleet, states
from tests.gateway.test_gateway import eventually

pytestmark = pytest.mark.timeout(120)  # a browser on a busy machine takes its time


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def test_parked_replicas_and_decisions_with_their_reasons_are_shown(browser: Browser, tmp_path: Path) -> None:
    with fleet(tmp_path, min=1, max=2, warm=1) as (_, url):
        eventually(lambda: states(url) == ["parked", "serving"], 30.0)
        with clean_visit(browser, url) as seen:
            seen.page.locator("#replica-rows tr[data-state=parked]").wait_for()
            assert seen.page.locator("#replica-rows tr").count() == 2
            assert "1 parked" in seen.page.locator("#replica-summary").inner_text()
            assert seen.page.locator("#fleet-wanted").inner_text().startswith("Wanted: 1 serving, 1 parked.")
            seen.page.get_by_text("What the fleet decided").click()
            notes = seen.page.locator("#fleet-notes").inner_text()
            assert "start 2" in notes
            assert "2 are started: 1 serve and 1 are parked in the end." in notes
