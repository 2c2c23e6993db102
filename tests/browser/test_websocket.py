"""What docs/websocket.md tells people to write in a page, in a real browser."""

import pytest

pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright (its browsers are not needed)")

from tests.browser.visit import chromium
from tests.gateway.test_websocket import engine, example, url

pytestmark = pytest.mark.timeout(60)
__all__ = ["engine", "url"]  # fixtures


def test_the_example_works_with_its_key_from_anywhere_and_without_one_only_from_here(url: str, engine: str) -> None:
    with_key = example("js", url)
    keyless = with_key.replace(', "openai-insecure-api-key.sk-known"', "")
    assert keyless != with_key
    closed = "new Promise(resolve => socket.onclose = event => resolve(event.code))"
    here, elsewhere = f"{url}/health/live", f"{engine}/health"
    with chromium() as browser:
        for where, code, expected in ((elsewhere, with_key, 1005), (elsewhere, keyless, 1006), (here, keyless, 1005)):
            page = browser.new_page()
            page.goto(where)
            page.evaluate("document.body.textContent = ''")
            assert page.evaluate(f"() => {{ {code}\n return {closed} }}") == expected
            assert page.text_content("body") == ("w w w " if expected == 1005 else "")
