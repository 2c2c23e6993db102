"""Every surface gives the same answer about which replicas are there, as of the moment of asking."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.engine.process import ask, headgate
from tests.gateway.raw_engine import raw_engine
from tests.gateway.test_gateway import chat, eventually

pytestmark = pytest.mark.timeout(60)


def views(url: str) -> dict[str, tuple[bool, int]]:
    """By view: whether it says that there is an outage, and how many replicas are down."""

    def get(path: str) -> Any:
        status, said = ask(url + path)
        assert status == 200
        return json.loads(said)

    def down(replicas: list[dict[str, Any]]) -> int:
        assert all((one["condition"] == "up") == (one["state"] in ("up", "ramping")) for one in replicas), replicas
        return sum(one["condition"] == "down" for one in replicas)

    fleet, slo, page = get("/admin/fleet"), get("/admin/slo"), get("/admin/state")
    doctor, again = get("/admin/doctor")["figures"], get("/admin/fleet")
    alert = any(one["name"] == "no_usable_replica" for one in slo["alerts"])
    told = {
        "fleet": (bool(fleet["outage"]), down(fleet["known"])),
        "slo": (slo["outage"], slo["fleet"]["down_count"]),
        "page": (bool(page["outage"]), down(page["replicas"])),
        "doctor": (doctor["outage"], len(doctor["replicas_out"])),
        "fleet again": (bool(again["outage"]), down(again["known"])),
    }
    if told["fleet"] == told["fleet again"] and fleet["outage"]:
        assert alert, "an outage without its alert"
    return told


def test_all_views_agree_while_replicas_go(tmp_path: Path) -> None:
    config = {"health": {"probe_interval_s": 0.1, "failures": 2}, "listen": {"port": 0}}
    path = tmp_path / "headgate.yaml"
    with raw_engine({}) as last:
        with raw_engine({}) as first:
            path.write_text(json.dumps({**config, "replicas": [{"url": first.url}, {"url": last.url}]}))
            server = headgate("serve", "--config", str(path))
            _, url = server.__enter__()
            eventually(lambda: ask(f"{url}/health/ready")[0] == 200)
            eventually(lambda: views(url)["fleet"] == (False, 0))
        try:
            until = time.monotonic() + 10
            seen = watch(url, until, (False, 1))
        except BaseException:
            server.__exit__(None, None, None)
            raise
    try:
        ask(f"{url}/v1/chat/completions", chat("hello", max_tokens=4))
        seen |= watch(url, time.monotonic() + 10, (True, 2))
        assert {(False, 1), (True, 2)} <= seen
    finally:
        server.__exit__(None, None, None)


def watch(url: str, until: float, wanted: tuple[bool, int]) -> set[tuple[bool, int]]:
    seen: set[tuple[bool, int]] = set()
    while wanted not in seen:
        assert time.monotonic() < until, f"not seen: {wanted}"
        told = views(url)
        if told["fleet"] == told["fleet again"]:  # nothing happened while the others were asked
            assert len(set(told.values())) == 1, told
            seen.add(told["fleet"])
    return seen
