"""`headgate fleet` in front of replicas that the gateway did not start."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from headgate.cli import fleet_client
from tests.engine.process import ask
from tests.gateway.test_gateway import double, eventually, gateway

pytestmark = pytest.mark.timeout(60)


def shown(url: str, width: int = 80) -> str:
    out = io.StringIO()
    fleet_client.show(url, console=Console(file=out, width=width, highlight=False))
    return out.getvalue()


def known(url: str) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in json.loads(ask(f"{url}/admin/fleet")[1])["known"]}


def test_it_says_how_each_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with double() as (_, first), double() as (dying, second):
        names = {"replicas": [{"id": "a", "url": first, "slots": 8}, {"id": "b", "url": second, "slots": 8}]}
        with gateway(tmp_path, names) as url:
            eventually(lambda: {one["state"] for one in known(url).values()} == {"up"})
            assert (known(url)["a"]["requests"], known(url)["a"]["limit"]) == (0, 8)
            text = shown(url)
            assert text.count(" up ") == 2
            assert "2 of 2 take requests" in text
            assert all(len(line) <= 80 for line in text.splitlines())
            fleet_client.act(url, "a", "drain")
            assert known(url)["a"]["state"] == "parked"
            assert "1 of 2 take requests" in shown(url)
            fleet_client.act(url, "a", "activate")
            eventually(lambda: known(url)["a"]["state"] == "up")
            dying.kill()
            eventually(lambda: known(url)["b"]["state"] == "ejected")
            text = shown(url)
            assert "ejected" in text
            assert f"b: {known(url)['b']['why']}" in " ".join(text.split())
            fleet_client.remove(url, "b")
            assert list(known(url)) == ["a"]
            assert "1 of 1 take requests" in shown(url)


def test_one_that_never_came_up_says_so(tmp_path: Path) -> None:
    with double() as (_, first):
        dead = {"id": "dead", "url": "http://127.0.0.1:9", "slots": 8}
        with gateway(tmp_path, {"replicas": [{"id": "a", "url": first, "slots": 8}, dead]}) as url:
            eventually(lambda: known(url)["a"]["state"] == "up")
            assert known(url)["dead"]["state"] == "starting"
            assert known(url)["dead"]["why"]
            assert "1 of 2 take requests" in shown(url)
