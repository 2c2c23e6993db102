"""The page at `/` in a real browser: what a person sees, hears and can do."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright (its browsers are not needed)")

from playwright.sync_api import Browser

from tests.browser.visit import Visit, chromium, clean_visit, scene, visit
from tests.engine.process import ask

pytestmark = pytest.mark.timeout(120)  # a browser on a busy machine takes its time


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def fleet() -> Iterator[str]:
    """Where 200 replicas are to be seen."""
    with scene("--replicas", "200") as (_, url):
        yield url


# -- figures ------------------------------------------------------------------------------------------------------


def test_it_loads_without_a_complaint_and_its_figures_move(browser: Browser, fleet: str) -> None:
    with clean_visit(browser, fleet) as seen:
        seen.until("document.querySelectorAll('article.lane').length === 4")
        for selector in ("#vitals", "[data-lane=fast] .facts", "[data-lane=fast] .figures", "#queue-rows"):
            seen.changes(selector)
        saved = seen.page.locator("#vitals > div", has_text="Tokens not decoded")
        assert saved.locator("dd").inner_text() == "1,234"


def test_each_lane_shows_its_percentiles_against_their_promises_and_its_heat(browser: Browser, fleet: str) -> None:
    with clean_visit(browser, fleet) as seen:
        fast = seen.page.locator("[data-lane=fast]")
        for name in ("p50", "p95", "p99"):
            assert (fast.locator(f".line.{name}").first.get_attribute("d") or "").startswith("M")
        assert fast.locator(".promise-label").all_text_contents() == ["p99 ≤ 2 s", "p50, p95 ≤ 500 ms"]
        assert fast.locator(".line.broken").count() >= 2  # above their promises, and shown to be
        assert fast.locator(".bars.refused").get_attribute("d")
        coloured = (
            "c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.filter((v, i) => v && i % 4 > 2).length"
        )
        assert fast.locator("canvas").evaluate(coloured) > 1000
        assert fast.get_attribute("data-state") == "critical"
        assert fast.locator("header .state").inner_text() == "TTFT p95 over its promise"


def test_the_figure_can_be_switched_and_shown_as_a_table(browser: Browser, fleet: str) -> None:
    with clean_visit(browser, fleet) as seen:
        before = seen.page.locator("[data-lane=slow] .line.p50").first.get_attribute("d")
        seen.page.get_by_role("radio", name="TPOT").check()
        assert seen.text("#lanes-figure") == "time per output token"
        assert seen.page.locator("[data-lane=slow] .line.p50").first.get_attribute("d") != before
        assert seen.page.locator("[data-lane=slow] .promise-label").all_text_contents() == [
            "p99 ≤ 200 ms",
            "p50 ≤ 80 ms",
        ]
        seen.page.get_by_role("radio", name="Table").check()
        rows = seen.page.locator("[data-lane=slow] .history tbody tr")
        assert rows.first.is_visible()
        assert rows.count() >= 59
        assert not seen.page.locator("[data-lane=slow] .plots").is_visible()


def test_pointing_at_a_moment_tells_its_figures(browser: Browser, fleet: str) -> None:
    with clean_visit(browser, fleet) as seen:
        plots = seen.page.locator("[data-lane=slow] .plots")
        plots.hover(position={"x": 300, "y": 40})
        tip = seen.page.locator("[data-lane=slow] .tip")
        assert tip.is_visible()
        assert "p99" in tip.inner_text()
        assert seen.page.locator(".cross:visible").count() == 4  # the same moment, in every lane
        seen.page.mouse.move(0, 0)
        assert not tip.is_visible()


def test_without_traffic_it_says_how_to_make_some(browser: Browser) -> None:
    with scene("--empty") as (_, url), clean_visit(browser, url) as seen:
        assert seen.page.get_by_role("heading", name="No traffic yet").is_visible()
        assert f"curl {url}/v1/chat/completions" in seen.text("#try")
        assert "authorization" not in seen.text("#try")
        assert not seen.page.locator("#lanes").is_visible()
        assert seen.page.locator("#replica-rows tr").count() == 6


def test_where_tenants_have_keys_it_says_where_the_key_goes(browser: Browser) -> None:
    with scene("--empty", "--keyed") as (_, url), clean_visit(browser, url) as seen:
        assert '-H "authorization: Bearer $OPENAI_API_KEY"' in seen.text("#try")


# -- one slow request ---------------------------------------------------------------------------------------------


def test_a_slow_request_opens_by_click_and_by_keyboard_and_its_parts_add_up(browser: Browser, fleet: str) -> None:
    with clean_visit(browser, fleet) as seen:
        row = seen.page.locator("#slow-rows tr").first
        row.locator("td").first.click()
        seen.page.get_by_role("dialog", name="Request 7f3a91c0de-1b42").wait_for()
        sheet, table = seen.page.locator("#request"), seen.page.locator("#request table.waterfall")
        table.wait_for()
        assert table.locator("caption").inner_text() == "Where the time went"
        assert "in the queue behind 14 requests" in sheet.locator(".headline").inner_text()
        shares = sheet.locator("tbody .share").all_inner_texts()
        assert 97 <= sum(int(share.split()[0]) for share in shares) <= 103
        assert sheet.locator("[data-main] th").inner_text() == "queue"
        assert sheet.locator(".track i").count() == 8  # decode is in two pieces, around the gap; route took no time
        widths = "bars => bars.reduce((sum, bar) => sum + parseFloat(bar.style.width), 0)"
        assert sheet.locator(".track i").evaluate_all(widths) == pytest.approx(100, abs=1)
        assert "#request=7f3a91c0de-1b42" in seen.page.url

        seen.page.keyboard.press("Escape")
        assert not sheet.is_visible()
        assert "#" not in seen.page.url
        row.get_by_role("button").focus()
        seen.changes("#vitals")  # a redraw in between does not take the focus away
        seen.page.keyboard.press("Enter")
        table.wait_for()
        seen.page.get_by_role("button", name="Close").press("Enter")
        focused = seen.page.evaluate("document.activeElement.closest('tr').dataset.request")
        assert focused == "7f3a91c0de-1b42"


def test_a_request_can_be_sent_to_somebody_and_asked_for_by_id(browser: Browser, fleet: str) -> None:
    with visit(browser, f"{fleet}/#request=7f3a91c0de-1b42") as seen:
        seen.page.locator("#request table.waterfall").wait_for()
        assert seen.errors == []
        seen.page.keyboard.press("Escape")
        seen.page.get_by_role("searchbox", name="Explain the request with this id").fill("never-was")
        seen.page.get_by_role("button", name="Why?").click()
        seen.page.get_by_text("no record of this request").wait_for()


# -- replicas -----------------------------------------------------------------------------------------------------


def test_two_hundred_replicas_come_worst_first_and_can_be_sorted_and_searched(browser: Browser, fleet: str) -> None:
    with clean_visit(browser, fleet) as seen:
        rows = seen.page.locator("#replica-rows tr")
        assert rows.count() == seen.page.locator("#replica-map i").count() == 200
        states = [rows.nth(n).get_attribute("data-state") for n in range(14)]
        assert states == ["ejected"] * 3 + ["probation"] * 4 + ["ramping"] * 7
        assert "ramping 40 %" in rows.nth(7).inner_text()
        assert seen.text("#replica-summary").startswith("200 replicas · 186 up")

        seen.page.get_by_role("button", name="Tokens", exact=True).press("Enter")
        tokens = [int(text.replace(",", "")) for text in seen.page.locator("td.c-tokens").all_inner_texts()]
        assert tokens == sorted(tokens, reverse=True)
        assert seen.page.get_by_role("columnheader", name="Tokens").get_attribute("aria-sort") == "descending"
        seen.page.get_by_role("searchbox", name="Show only replicas").fill("refused")
        assert rows.count() == 3


def test_two_hundred_replicas_leave_the_browser_mostly_idle(browser: Browser, fleet: str) -> None:
    with clean_visit(browser, fleet) as seen:
        session = seen.page.context.new_cdp_session(seen.page)
        session.send("Performance.enable")

        def busy_s() -> float:
            values = {item["name"]: item["value"] for item in session.send("Performance.getMetrics")["metrics"]}
            return float(values["ScriptDuration"] + values["LayoutDuration"] + values["RecalcStyleDuration"])

        before = busy_s()
        for _ in range(5):
            seen.changes("#vitals")
        assert (busy_s() - before) / 5 < 0.25  # a second; about 0.02 where nothing else runs


# -- the gateway comes and goes -----------------------------------------------------------------------------------


def test_it_says_that_the_gateway_is_gone_and_comes_back_by_itself(browser: Browser) -> None:
    with scene() as (process, url), visit(browser, url) as seen:
        seen.until_live()
        assert seen.errors == []
        process.kill()
        seen.until("!document.getElementById('gone').hidden")
        assert "The gateway is gone" in seen.text("#gone")
        seen.until("document.getElementById('gone-age').innerText.includes('old')")
        assert seen.page.locator("#main").get_attribute("data-stale") is not None
        assert seen.page.locator("[data-lane=fast]").is_visible()  # what was last known stays
        process.wait()
        with scene(port=int(url.rsplit(":", 1)[1])):
            seen.until_live()
            assert not seen.page.locator("#gone").is_visible()
            assert seen.page.locator("#main").get_attribute("data-stale") is None
            seen.changes("#vitals")


def test_a_gateway_that_hangs_is_noticed_too(browser: Browser) -> None:
    with scene() as (process, url), visit(browser, url) as seen:
        seen.until_live()
        process.send_signal(signal.SIGSTOP)
        seen.until("!document.getElementById('gone').hidden")
        assert "it fell silent" in seen.text("#gone")
        process.send_signal(signal.SIGCONT)
        seen.until_live()


def test_a_key_is_asked_for_once_and_kept_for_the_tab(browser: Browser) -> None:
    with scene("--key", "sesame") as (_, url), visit(browser, url) as seen:
        key = seen.page.get_by_label("Admin key", exact=True)
        key.wait_for()
        key.fill("open barley")
        seen.page.get_by_role("button", name="Open").click()
        seen.page.get_by_text("Not with that key").wait_for()
        key.fill("sesame")
        key.press("Enter")
        seen.until_live()
        assert not seen.page.get_by_role("dialog").is_visible()
        seen.errors.clear()  # a 401 is written to the console, whoever handles it
        seen.page.reload()
        seen.until_live()
        seen.page.locator("#slow-rows tr").first.click()
        seen.page.locator("#request table.waterfall").wait_for()
        assert seen.errors == []
        assert "sesame" not in seen.page.url


# -- for everybody ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [320, 360, 768, 1100, 1600, 2560])
def test_nothing_sticks_out_sideways(browser: Browser, fleet: str, width: int) -> None:
    with clean_visit(browser, fleet, width) as seen:
        wide = "document.documentElement.scrollWidth"
        # Whatever fonts this machine has: a wider one must do too.
        for font in ("", "DejaVu Sans, Verdana, sans-serif"):
            seen.page.evaluate("font => document.documentElement.style.setProperty('font-family', font)", font)
            assert seen.page.evaluate(wide) <= width
            seen.page.get_by_role("radio", name="Table").check()
            assert seen.page.evaluate(wide) <= width
            seen.page.get_by_role("radio", name="Chart").check()
        seen.page.locator("#slow-rows tr").first.click()
        seen.page.locator("#request table.waterfall").wait_for()
        assert seen.page.evaluate("[document.getElementById('request').scrollWidth, innerWidth]")[0] <= width


CONTRASTS = """() => {
  const channel = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const [r, g, b, a = 1] = parse(getComputedStyle(node).backgroundColor);
      if (a === 1) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!own || !node.checkVisibility({ visibilityProperty: true }) || node.closest("dialog:not([open])")) continue;
    const style = getComputedStyle(node);
    const ink = parse(node instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [light(ink), light(behind(node))];
    const said = `${node.className.baseVal ?? node.className} ${node.textContent}`;
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), said]);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_word_has_contrast(browser: Browser, fleet: str, scheme: str) -> None:
    with clean_visit(browser, fleet, scheme=scheme) as seen:
        page = seen.page.evaluate(CONTRASTS)
        seen.page.locator("#slow-rows tr").first.click()
        seen.page.locator("#request table.waterfall").wait_for()
        sheet = seen.page.evaluate(CONTRASTS)
        assert 400 < len(page) < len(sheet)
        assert [said for ratio, said in page + sheet if ratio < 4.5] == []


def test_colours_follow_the_system_until_somebody_chooses(browser: Browser, fleet: str) -> None:
    with clean_visit(browser, fleet, scheme="dark") as seen:
        back = "getComputedStyle(document.body).backgroundColor"
        dark = seen.page.evaluate(back)
        seen.page.get_by_role("button", name="Switch to light colours").click()
        light = seen.page.evaluate(back)
        assert light != dark
        seen.page.reload()
        seen.until_live()
        assert seen.page.evaluate(back) == light
        assert seen.page.get_by_role("button", name="Switch to dark colours").is_visible()


def test_whoever_cannot_see_it_gets_the_same(browser: Browser, fleet: str) -> None:
    with clean_visit(browser, fleet) as seen:
        page = seen.page
        for landmark in ("banner", "main", "contentinfo"):
            assert page.get_by_role(landmark).count() == 1
        charts = page.locator(".plots")
        for number in range(charts.count()):
            said = charts.nth(number).get_attribute("aria-label") or ""
            assert "last 10 minutes. Now p50" in said
            assert "within" in said
            table = page.locator(f"[id='{charts.nth(number).get_attribute('aria-describedby')}']")
            assert table.locator("caption").inner_text()
            assert table.locator("tbody tr").count() >= 59
        assert nameless(seen) == []


def nameless(seen: Visit) -> list[dict[str, Any]]:
    """Whatever can be operated or entered, and does not say what it is."""
    session = seen.page.context.new_cdp_session(seen.page)
    needs = {"button", "link", "radio", "searchbox", "textbox", "table", "dialog", "region", "image", "radiogroup"}
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    used = [node for node in nodes if not node["ignored"] and node["role"]["value"] in needs]
    assert len(used) > 30
    return [node for node in used if not node.get("name", {}).get("value", "").strip()]


def test_it_can_be_used_by_keyboard_alone(browser: Browser, fleet: str) -> None:
    with clean_visit(browser, fleet) as seen:
        order = []
        for _ in range(9):
            seen.page.keyboard.press("Tab")
            order.append(seen.page.evaluate("document.activeElement.className + ' ' + document.activeElement.id"))
        assert order[0].startswith("skip")
        assert "icon theme" in order
        assert "plots " in order
        while "plots" not in seen.page.evaluate("document.activeElement.className"):
            seen.page.keyboard.press("Shift+Tab")
        seen.page.keyboard.press("ArrowLeft")
        assert "p99" in seen.text("#spoken")
        assert seen.page.locator(".tip:visible").count() == 1
        first = seen.text("#spoken")
        seen.page.keyboard.press("PageUp")
        assert seen.text("#spoken") != first
        seen.page.keyboard.press("Escape")
        assert seen.page.locator(".tip:visible").count() == 0


def test_a_new_alert_is_spoken_and_an_old_one_is_not_spoken_again(browser: Browser) -> None:
    with scene() as (_, url), clean_visit(browser, url) as seen:
        assert seen.page.locator("#trouble-list li").count() == 3
        assert seen.text("#announcer") == ""
        assert ask(f"{url}/worsen", {})[0] == 200
        seen.until("document.getElementById('announcer').innerText !== ''")
        assert seen.text("#announcer").startswith("critical: slow, the error budget")
        assert "TTFT" not in seen.text("#announcer")
        assert seen.page.locator("#trouble-list li").count() == 4


def test_nothing_moves_for_whoever_wants_it_still(browser: Browser, fleet: str) -> None:
    running = "document.getAnimations().filter(a => a.playState === 'running').length"
    with clean_visit(browser, fleet) as seen:
        assert seen.page.evaluate(running) > 0
    with clean_visit(browser, fleet, reduced_motion="reduce") as seen:
        assert seen.page.evaluate(running) == 0
