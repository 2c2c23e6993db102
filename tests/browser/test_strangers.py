"""What a page from elsewhere can do to a gateway on the same machine, in a real browser."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright (its browsers are not needed)")

from playwright.sync_api import Page

from tests.browser.visit import chromium
from tests.engine.process import ask
from tests.gateway.test_gateway import chat, double, gateway, seen

pytestmark = pytest.mark.timeout(60)

BLIND = """async ([url, body, typed]) => {
    const options = {method: "POST", mode: "no-cors", body: typed ? body : new Blob([body])};
    try { return (await fetch(url, options)).type; } catch (error) { return String(error); }
}"""
READING = """async ([url, body]) => {
    const headers = {"content-type": "application/json", "authorization": "Bearer none", "x-stainless-os": "x"};
    try {
        const answer = await fetch(url, body === null ? {headers} : {method: "POST", headers, body});
        return [answer.status, await answer.text(), answer.headers.get("x-request-id") !== null];
    } catch (error) { return String(error); }
}"""


def reads(page: Page, url: str, body: Any = None) -> Any:
    return page.evaluate(READING, [url, None if body is None else json.dumps(body)])


def replicas(url: str) -> int:
    return len(json.loads(ask(f"{url}/admin/fleet")[1])["known"])


def test_a_page_from_elsewhere_can_neither_ask_nor_change_nor_read(tmp_path: Path) -> None:
    with double() as (_, engine), gateway(tmp_path, {}, engine) as url, chromium() as browser:
        page = browser.new_page()
        page.goto(f"{engine}/health")  # a page of another port: another origin
        before = seen(engine)["seen"]
        for typed in (False, True):
            page.evaluate(BLIND, [f"{url}/v1/chat/completions", json.dumps(chat("n=1")), typed])
            page.evaluate(
                BLIND, [f"{url}/admin/replicas", json.dumps({"url": engine.replace("127.", "127.0.0.")}), typed]
            )
            page.evaluate(BLIND, [f"{url}/admin/tenants", json.dumps({"evil": {"trusted": True}}), typed])
        assert seen(engine)["seen"] == before
        assert replicas(url) == 1
        for path in ("/v1/models", "/admin/state", "/metrics"):
            assert "TypeError" in reads(page, f"{url}{path}")
        page.goto(f"{url}/health/live")  # from here all of it works
        assert reads(page, f"{url}/v1/chat/completions", chat("n=1"))[0] == 200
        assert reads(page, f"{url}/admin/state")[0] == 200


def test_a_page_that_is_allowed_reads_answers_streams_and_errors(tmp_path: Path) -> None:
    with (
        double() as (_, engine),
        gateway(tmp_path, {"cors": {"origins": [engine]}}, engine) as url,
        chromium() as browser,
    ):
        page = browser.new_page()
        page.goto(f"{engine}/health")
        assert reads(page, f"{url}/v1/models")[0] == 200
        status, said, has_id = reads(page, f"{url}/v1/chat/completions", chat("n=2", stream=True))
        assert (status, said.endswith("data: [DONE]\n\n"), has_id) == (200, True, True)
        status, said, has_id = reads(page, f"{url}/v1/chat/completions", {"messages": []})
        assert (status, json.loads(said)["error"]["param"], has_id) == (400, "messages", True)
        assert "TypeError" in reads(page, f"{url}/admin/state")
