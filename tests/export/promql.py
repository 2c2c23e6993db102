"""The PromQL of a dashboard, for tests that ask it."""

import json
import re
from collections.abc import Iterator
from typing import Any

from headgate.export.grafana import RATE


def queries(dashboard: str, *, lane: str = ".*", interval: str = "1m", reported: bool = False) -> list[str]:
    """Every PromQL expression of a dashboard, its variables replaced. `reported`: include the panels in collapsed rows,
    whose figures only some replicas and machines report."""
    found = []
    for panel in _panels(json.loads(dashboard), reported):
        for target in panel.get("targets", ()):
            expr = str(target["expr"]).replace(RATE, interval)
            found.append(re.sub(r"\$\{?lane\}?", lambda _: lane, expr))
    return found


def _panels(model: dict[str, Any], reported: bool) -> Iterator[dict[str, Any]]:
    for panel in model["panels"]:
        yield panel
        if reported:
            yield from panel.get("panels", ())
