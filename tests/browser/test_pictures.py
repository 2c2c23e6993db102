"""The pictures in docs/images, of a real run: a gateway, engines that take a GPU's time, and a load on both."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright (its browsers are not needed)")

from tests.browser.visit import ROOT, chromium, clean_visit
from tests.gateway.test_gateway import gateway

ENGINES = 4
LASTS_S = 200.0
STEADY = (
    "chat=poisson:rate=5,prompt=40-400,output=20-120,lane=fast; work=gamma:rate=2,cv=2,prompt=600-3000,output=60-300;"
    " api=poisson:rate=2,prompt=100-600,output=20-80,stream=false;"
    " nightly=poisson:rate=0.4,prompt=1000,output=200,lane=batch"
)
BURST = "burst=constant:rate=25,prompt=4000-12000,output=50"
CONFIG: dict[str, Any] = {
    "fleet": {
        "kind": "processes",
        "scale": {"min": ENGINES, "max": ENGINES, "forecast": False},
        "emulate": {"profile": "h100-llama3-8b", "dilate": 2, "slots": 16},
    },
    "anonymous": {"trusted": True},
}


@contextmanager
def loaded(url: str, load: str, seconds: float) -> Iterator[subprocess.Popen[bytes]]:
    """`headgate bench` beside what is looked at."""
    argv = [sys.executable, "-m", "headgate", "bench", url, "--load", load, "--duration", str(seconds), "--allow-lag"]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.skipif(
    os.environ.get("HEADGATE_SCREENSHOTS") != "1", reason="HEADGATE_SCREENSHOTS=1 makes docs/images anew"
)
@pytest.mark.timeout(600)
def test_pictures_for_the_readme(tmp_path: Path) -> None:
    folder: Path = ROOT / "docs" / "images"
    sizes = (("light", 1600, 1080, "light", 1), ("dark", 1600, 1080, "dark", 1), ("phone", 360, 760, "dark", 2))
    with (
        chromium() as browser,
        gateway(tmp_path, {**CONFIG, "replicas": []}) as url,
        loaded(url, STEADY, LASTS_S + 120.0),
        clean_visit(browser, url) as waiting,
    ):
        waiting.page.wait_for_timeout(0.75 * LASTS_S * 1000)
        with loaded(url, BURST, 6.0) as burst:
            burst.wait()
        waiting.page.wait_for_timeout(0.25 * LASTS_S * 1000)
        for name, width, height, scheme, scale in sizes:
            with clean_visit(browser, url, width, scheme, height=height, device_scale_factor=scale) as seen:
                seen.changes("#vitals")
                seen.page.screenshot(path=folder / f"dashboard-{name}.png")
                if name == "light":
                    seen.page.locator("#slow-rows tr").first.click()
                    seen.page.locator("#request table.waterfall").wait_for()
                    seen.until("document.getAnimations().every(a => a.animationName !== 'slide')")
                    seen.page.screenshot(path=folder / "dashboard-waterfall.png")
                assert seen.page.locator("#slow-rows tr").count(), "nothing happened that a picture could show"
