"""The pictures in docs/images, of real runs: a gateway, engines that take a GPU's time, and a load on both."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright (its browsers are not needed)")

from playwright.sync_api import Browser

from tests.browser.visit import ROOT, Visit, chromium, clean_visit, visit
from tests.engine.process import ask
from tests.gateway.test_gateway import chat, double, gateway

FOLDER: Path = ROOT / "docs" / "images"
ENGINES = 4
LASTS_S = 240.0
TENANTS = ("acme", "globex", "initech")
STEADY = (
    "chat=poisson:rate=4,prompt=40-400,output=20-120,lane=fast,tenant=acme;"
    " work=gamma:rate=1.5,cv=2,prompt=600-3000,output=60-300,tenant=globex;"
    " api=poisson:rate=1.5,prompt=100-600,output=20-80,stream=false,tenant=acme|globex;"
    " nightly=poisson:rate=0.3,prompt=1000,output=200,lane=batch,tenant=initech"
)
BURST = "burst=constant:rate=10,prompt=4000-9000,output=50,tenant=initech"
CONFIG: dict[str, Any] = {
    "fleet": {
        "kind": "processes",
        "scale": {"min": ENGINES, "max": ENGINES, "forecast": False},
        "emulate": {"profile": "h100-llama3-8b", "dilate": 2, "slots": 16},
    },
    "tenants": {name: {"key_sha256": [hashlib.sha256(name.encode()).hexdigest()], "trusted": True} for name in TENANTS},
    "admin_keys": [hashlib.sha256(b"boss").hexdigest()],
    "observe": {"price_per_replica_hour": 2.5},
    "replicas": [],
}
made = pytest.mark.skipif(
    os.environ.get("HEADGATE_SCREENSHOTS") != "1", reason="HEADGATE_SCREENSHOTS=1 makes docs/images anew"
)


@contextmanager
def loaded(url: str, load: str, seconds: float) -> Iterator[subprocess.Popen[bytes]]:
    """`headgate bench` beside what is looked at."""
    keys = ["--key", TENANTS[0], *(word for name in TENANTS for word in ("--key", f"{name}={name}"))]
    argv = [sys.executable, "-m", "headgate", "bench", url, "--load", load, "--duration", str(seconds), *keys]
    with subprocess.Popen([*argv, "--allow-lag"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def opened(
    browser: Browser, url: str, width: int = 1600, height: int = 1080, scheme: str = "light", **more: Any
) -> Iterator[Visit]:
    """The page, after the admin key."""
    with visit(browser, url, width, height, scheme, **more) as seen:
        seen.page.get_by_label("Admin key", exact=True).fill("boss")
        seen.page.get_by_role("button", name="Open").click()
        seen.until_live()
        yield seen


@made
@pytest.mark.timeout(900)
def test_pictures_for_the_readme(tmp_path: Path) -> None:
    sizes = (("light", 1600, 1080, "light", 1), ("dark", 1600, 1080, "dark", 1), ("phone", 360, 760, "dark", 2))
    with (
        chromium() as browser,
        gateway(tmp_path, CONFIG) as url,
        loaded(url, STEADY, LASTS_S + 120.0),
        opened(browser, url) as waiting,
    ):
        waiting.page.wait_for_timeout(0.7 * LASTS_S * 1000)
        with loaded(url, BURST, 6.0) as burst:
            burst.wait()
        waiting.page.wait_for_timeout(0.3 * LASTS_S * 1000)
        for name, width, height, scheme, scale in sizes:
            with opened(browser, url, width, height, scheme, device_scale_factor=scale) as seen:
                seen.changes("#vitals")
                seen.until("!document.getElementById('blame').hidden")
                seen.page.screenshot(path=FOLDER / f"dashboard-{name}.png")
                if name == "light":
                    seen.page.locator("#blame").screenshot(path=FOLDER / "dashboard-blame.png")
                    seen.page.locator("#slow-rows tr").first.click()
                    seen.page.locator("#request table.waterfall").wait_for()
                    seen.until("document.getAnimations().every(a => a.animationName !== 'slide')")
                    seen.page.screenshot(path=FOLDER / "dashboard-waterfall.png")
                assert seen.page.locator("#slow-rows tr").count(), "nothing happened that a picture could show"


@made
@pytest.mark.timeout(300)
def test_pictures_of_a_gateway_that_is_idle_refuses_and_has_lost_its_replicas(tmp_path: Path) -> None:
    lanes = {"fast": {"queue_limit": 2, "concurrency": 3}}
    over = threading.Event()

    def client(url: str, content: str) -> None:
        while not over.is_set():
            ask(f"{url}/v1/chat/completions", chat(content, stream=True))
            over.wait(0.15)

    with chromium() as browser, double() as (one, first), double() as (two, second):
        config: dict[str, Any] = {"replicas": [{"url": first}, {"url": second}], "lanes": lanes}
        with gateway(tmp_path, config) as url, clean_visit(browser, url, height=1080) as seen:
            seen.page.screenshot(path=FOLDER / "dashboard-idle.png")
            asked = ["ttft=60 itl=8 n=20"] * 4 + ["ttft=400 itl=30 n=40"] * 14
            clients = [threading.Thread(target=client, args=(url, content)) for content in asked]
            for thread in clients[:4]:
                thread.start()
            seen.page.wait_for_timeout(60_000)
            for thread in clients[4:]:
                thread.start()
            seen.until("document.getElementById('verdict-text').innerText.startsWith('Refusing')", within_s=60)
            seen.page.wait_for_timeout(30_000)
            seen.page.screenshot(path=FOLDER / "dashboard-refusing.png")
            for engine in (one, two):
                engine.send_signal(signal.SIGKILL)
            seen.until("document.title.startsWith('Down: 0 of 2 replicas answer (connection refused)')")
            seen.page.wait_for_timeout(3000)
            seen.page.screenshot(path=FOLDER / "dashboard-outage.png")
            over.set()
            for thread in clients:
                thread.join()
