"""axe-core, an accessibility checker, on a page that a real browser shows."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.browser.visit import ROOT, Visit

FILE: Path = ROOT / ".bench" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
CHECK = """() => axe.run(document, {resultTypes: ["violations"]}).then(
  (found) => [found.violations.map((one) => ({id: one.id, help: one.help, where: one.nodes.map((node) => node.html)})),
              found.passes.length])"""


@cache
def _source() -> str:
    return FILE.read_text(encoding="utf-8")


def needed() -> None:
    if not FILE.is_file():
        pytest.skip(f"no axe-core: {FILE} is missing; `make axe` installs it (npm)")


def violations(seen: Visit) -> list[dict[str, Any]]:
    """What axe finds wrong with the page as it is now, after its animations."""
    seen.until("document.getAnimations().every(a => a.animationName !== 'slide')")
    seen.page.evaluate(_source())
    found, passed = seen.page.evaluate(CHECK)
    assert passed > 5
    return list(found)
