"""What an operator does on the page: ranges, keys, who costs whom, and a request tried from there."""

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright (its browsers are not needed)")

from playwright.sync_api import Browser

from tests.browser.visit import chromium, clean_visit, scene, visit
from tests.engine.process import ask
from tests.gateway.test_gateway import chat, double, gateway

pytestmark = pytest.mark.timeout(120)  # a browser on a busy machine takes its time


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def fleet() -> Iterator[str]:
    with scene() as (_, url):
        yield url


def test_it_opens_with_the_verdict_and_what_is_not_answered(browser: Browser, fleet: str) -> None:
    with clean_visit(browser, fleet) as seen:
        line = seen.text("#verdict-text")
        assert line.startswith("Broken: fast TTFT p99 is 3.1 s, promised 2 s")
        assert seen.page.title() == f"{line} – Headgate"
        assert seen.text("#link") == "connected"
        assert seen.page.locator("#vitals dt").all_inner_texts()[:3] == ["Answered", "Failed/s", "Refused/s"]
        assert "llama-3.3-70b" in seen.text("#serving")
        assert "4.12 USD" in seen.text("#vitals")


def test_each_fact_is_said_once_with_its_cause(browser: Browser, fleet: str) -> None:
    with clean_visit(browser, fleet) as seen:
        items = seen.page.locator("#trouble-list li")
        assert items.count() == 3
        first = items.first.inner_text()
        assert "TTFT p99 is 3.1 s" in first
        assert "Because first tokens wait for the long prefills of others." in first
        assert "a smaller prefill chunk" in first
        assert "Look at the queue wait" not in first  # the cause is known
        assert [items.nth(n).locator(".state").inner_text() for n in range(3)] == ["critical", "warning", "note"]


def test_the_last_hour_and_day_are_drawn_and_read(browser: Browser, fleet: str) -> None:
    with clean_visit(browser, fleet) as seen:
        line = "(document.querySelector('[data-lane=slow] .line.p50')?.getAttribute('d') ?? '')"
        drawn = [seen.page.evaluate(line)]
        for name, within in (("1 h", "last hour"), ("24 h", "last 24 hours")):
            seen.page.get_by_role("radio", name=name, exact=True).check()
            seen.until(f"was => {line} !== was && {line} !== ''", drawn[-1])
            drawn.append(seen.page.evaluate(line))
            assert within in (seen.page.locator("[data-lane=slow] .plots").get_attribute("aria-label") or "")
        seen.page.get_by_role("radio", name="Table").check()
        assert seen.page.locator("[data-lane=slow] .history tbody tr").count() == 96
        seen.page.get_by_role("radio", name="10 min").check()
        seen.until("document.querySelectorAll('[data-lane=slow] .history tbody tr').length <= 61")


def test_keys_do_what_they_say_and_nothing_while_text_is_typed(browser: Browser, fleet: str) -> None:
    with clean_visit(browser, fleet) as seen:
        press = seen.page.keyboard.press
        press("/")
        assert seen.page.evaluate("document.activeElement.id") == "find-id"
        press("?")
        press("2")
        assert seen.page.locator("#find-id").input_value() == "?2"
        assert not seen.page.locator("#keys").is_visible()
        seen.page.locator("#find-id").blur()
        press("2")
        assert seen.page.get_by_role("radio", name="1 h", exact=True).is_checked()
        press("c")
        assert seen.page.get_by_role("radio", name="Table").is_checked()
        press("?")
        seen.page.get_by_role("dialog", name="Keys").wait_for()
        press("t")
        assert not seen.page.locator("#trial").is_visible()
        press("Escape")
        press("t")
        seen.page.get_by_role("dialog", name="Try a request").wait_for()
        assert seen.page.evaluate("document.activeElement.id") == "trial-prompt"


def test_who_costs_whom_is_told_by_tenant(browser: Browser, fleet: str) -> None:
    with clean_visit(browser, fleet) as seen:
        rows = seen.page.locator("#blame-rows tr")
        rows.first.wait_for()
        assert rows.count() == 3
        assert "globex 1.9 s (61 %), umbrella 300 ms (10 %)" in rows.first.inner_text()
        assert "own 620 ms, others 2.2 s, no tenant 300 ms" in (rows.first.locator(".unseen").text_content() or "")
        width = (
            "row => [...row.querySelectorAll('.stack i')].reduce((sum, bar) => sum + parseFloat(bar.style.width), 0)"
        )
        assert rows.first.evaluate(width) == pytest.approx(100, abs=1)


def test_an_odd_lane_leaves_no_hole_and_what_is_missing_stands_first(browser: Browser) -> None:
    with scene("--replicas", "40") as (_, url), clean_visit(browser, url) as seen:
        box = "id => document.getElementById(id).getBoundingClientRect().top"
        assert seen.page.evaluate(box, "replicas") < seen.page.evaluate(box, "lanes")  # r-031 is ejected


def test_a_request_is_tried_and_its_own_waterfall_is_shown(browser: Browser, tmp_path: Path) -> None:
    with double() as (_, engine), gateway(tmp_path, {}, engine) as url, clean_visit(browser, url) as seen:
        seen.page.get_by_role("button", name="Try it here").click()
        seen.page.get_by_role("dialog", name="Try a request").wait_for()
        seen.page.get_by_label("Message").fill("ttft=300 itl=20 n=12")
        seen.page.get_by_role("button", name="Send").click()
        seen.until("document.getElementById('trial-state').innerText.startsWith('First token after')")
        seen.until("document.getElementById('trial-state').innerText.startsWith('Whole answer after')")
        assert seen.text("#trial-answer").strip()
        table = seen.page.locator("#trial-why table.waterfall")
        table.wait_for()
        assert "prefill" in table.inner_text()
        assert "End to end" in seen.text("#trial-why")


def test_what_is_tried_uses_a_users_key_that_is_kept_nowhere(browser: Browser, tmp_path: Path) -> None:
    digest = hashlib.sha256(b"sesame").hexdigest()
    admin = hashlib.sha256(b"boss").hexdigest()
    config: dict[str, Any] = {"tenants": {"acme": {"key_sha256": [digest]}}, "admin_keys": [admin]}
    with double() as (_, engine), gateway(tmp_path, config, engine) as url, visit(browser, url) as seen:
        seen.page.get_by_label("Admin key", exact=True).fill("boss")
        seen.page.get_by_role("button", name="Open").click()
        seen.until_live()
        seen.errors.clear()  # a 401 is written to the console, whoever handles it
        seen.page.keyboard.press("t")
        key, send = seen.page.get_by_label("API key"), seen.page.get_by_role("button", name="Send")
        seen.page.get_by_label("Message").fill("n=3")
        send.click()
        assert seen.text("#trial-state") == ""  # the browser asks for the key itself
        key.fill("open barley")
        send.click()
        seen.until("document.getElementById('trial-flaw').innerText.startsWith('It got no whole answer')")
        key.fill("sesame")
        send.click()
        seen.until("document.getElementById('trial-why').innerText.includes('acme')")
        kept = "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])"
        assert "sesame" not in seen.page.evaluate(kept)
        seen.page.reload()
        seen.until_live()
        seen.page.keyboard.press("t")
        assert key.input_value() == ""


def test_the_docs_use_the_usual_words_and_can_try_a_call(browser: Browser, tmp_path: Path) -> None:
    with double() as (_, engine), gateway(tmp_path, {}, engine) as url, visit(browser, url) as seen:
        seen.until_live()
        seen.page.get_by_role("banner").get_by_role("link", name="API").click()
        article = seen.page.locator("article#chat_completions, article:has-text('/v1/chat/completions')").first
        words = article.locator("summary").all_inner_texts()
        assert words == ["Parameters", "Responses", "Try it"]
        article.get_by_text("Try it").click()
        article.locator("textarea").fill('{"model": "default", "messages": [{"role": "user", "content": "n=3"}]}')
        article.get_by_role("button", name="Send").click()
        article.get_by_text("200 OK, whole after").wait_for()
        assert '"choices"' in article.locator(".said").inner_text()
        assert seen.errors == []


def test_blame_on_a_real_gateway_adds_up(browser: Browser, tmp_path: Path) -> None:
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("acme", "globex")}
    config: dict[str, Any] = {
        "tenants": {name: {"key_sha256": [digest]} for name, digest in digests.items()},
        "admin_keys": [hashlib.sha256(b"boss").hexdigest()],
    }
    with double() as (_, engine), gateway(tmp_path, config, engine) as url, visit(browser, url) as seen:
        clients = [
            threading.Thread(target=ask, args=(f"{url}/v1/chat/completions", chat("ttft=30 itl=2 n=5", stream=True)),
                             kwargs={"headers": {"authorization": f"Bearer {name}"}})
            for name in digests for _ in range(10)
        ]  # fmt: skip
        for one in clients:
            one.start()
        for one in clients:
            one.join()
        seen.page.get_by_label("Admin key", exact=True).fill("boss")
        seen.page.get_by_role("button", name="Open").click()
        seen.until_live()
        seen.until("document.querySelectorAll('#blame-rows tr').length === 2")
        assert {row.split()[0] for row in seen.page.locator("#blame-rows tr").all_inner_texts()} == {"acme", "globex"}
