"""A real browser, the scene it looks at, and what went wrong on the way."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

from headgate.model.clock import monotonic

ROOT = Path(__file__).parent.parent.parent
NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


@contextmanager
def chromium() -> Iterator[Browser]:
    """The system's own: tests download no browser."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    # A container's root has no use for the sandbox; anybody else keeps it.
    args = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=args)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def scene(*arguments: str, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.browser.scene", str(port), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    try:
        yield process, f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@dataclass
class Visit:
    """A page in a window of its own, and everything it complained about."""

    page: Page
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on(
            "console", lambda said: self.errors.append(said.text) if said.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("requestfailed", self._failed)

    def _heard(self, said: ConsoleMessage) -> None:
        if said.type in ("error", "warning"):
            self.errors.append(said.text)

    def _failed(self, request: Request) -> None:
        if not (request.url.endswith("/admin/live") and request.failure == "net::ERR_ABORTED"):  # the page was left
            self.errors.append(f"{request.url}: {request.failure}")

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def until(self, script: str, argument: Any = None, within_s: float = 15.0) -> None:
        """Wait for a fact about the page, written in its own language.

        Not wait_for_function, which needs eval: the page's policy forbids it, and must not be lifted for a test."""
        ends = monotonic() + within_s
        while not self.page.evaluate(script, argument):
            assert monotonic() < ends, f"still not so: {script}"
            self.page.wait_for_timeout(20)

    def until_live(self) -> None:
        self.until("document.documentElement.dataset.link === 'live' && !document.getElementById('main').hidden")

    def changes(self, selector: str) -> None:
        """Wait until what is written there is no longer what it was."""
        self.until(
            "([selector, was]) => document.querySelector(selector).innerText !== was", [selector, self.text(selector)]
        )


@contextmanager
def visit(
    browser: Browser, url: str, width: int = 1600, height: int = 1000, scheme: str = "light", **more: Any
) -> Iterator[Visit]:
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, **more)  # type: ignore[arg-type]
    try:
        seen = Visit(context.new_page())
        seen.page.goto(url)
        yield seen
    finally:
        context.close()


@contextmanager
def clean_visit(browser: Browser, url: str, width: int = 1600, scheme: str = "light", **more: Any) -> Iterator[Visit]:
    """One during which nothing may go wrong."""
    with visit(browser, url, width, scheme=scheme, **more) as seen:
        seen.until_live()
        yield seen
        assert not seen.errors, seen.errors
