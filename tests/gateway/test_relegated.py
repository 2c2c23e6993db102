"""A request that can't be in time in its lane waits in a lower one; client, record and figures say so."""

import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.test_gateway import chat, double, eventually, gateway, seen

pytestmark = pytest.mark.timeout(60)
LANES: dict[str, Any] = {"slow": {"wait_bound_s": 0.3, "ttft_target_s": 1}, "long": {"wait_bound_s": 20}}


def asked(url: str, words: str, **headers: str) -> tuple[int, dict[str, str]]:
    """Status and headers of an unstreamed chat."""
    body = json.dumps(chat(words)).encode()
    sent = urllib.request.Request(
        f"{url}/v1/chat/completions", body, {"content-type": "application/json", "x-headgate-timings": "1", **headers}
    )
    try:
        with urllib.request.urlopen(sent, timeout=30) as answer:
            answer.read()
            return answer.status, {name.lower(): value for name, value in answer.headers.items()}
    except urllib.error.HTTPError as error:
        with error:
            error.read()
            return error.code, {name.lower(): value for name, value in error.headers.items()}


def figures(url: str) -> str:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        return str(answer.read(), "utf-8")


def test_what_would_be_late_waits_as_one_of_a_lower_lane_and_all_say_so(tmp_path: Path) -> None:
    with (
        double() as (_, engine),
        gateway(tmp_path, {"lanes": LANES}, engine, slots=1) as url,
        ThreadPoolExecutor(4) as pool,
    ):
        first = pool.submit(asked, url, "itl=100 n=12")
        eventually(lambda: seen(engine)["running"] == 1)
        late = pool.submit(asked, url, "itl=5 n=2")
        strict = pool.submit(asked, url, "itl=5 n=2", **{"x-headgate-when-late": "refuse"})
        assert first.result()[0] == 200
        assert "x-headgate-relegated" not in first.result()[1]
        status, headers = late.result()
        assert (status, headers["x-headgate-relegated"], headers["x-headgate-lane"]) == (200, "slow to long", "long")
        status, headers = strict.result()
        assert (status, "retry-after" in headers, headers["x-headgate-lane"]) == (503, True, "slow")
        eventually(lambda: 'headgate_relegated_total{lane="slow",to="long"} 1' in figures(url))


@pytest.mark.parametrize("wish", ["perhaps", "Relegate", "", "x" * 500])
def test_another_wish_is_refused_by_name(tmp_path: Path, wish: str) -> None:
    with double() as (_, engine), gateway(tmp_path, {}, engine) as url:
        status, _ = asked(url, "n=1", **{"x-headgate-when-late": wish})
        assert status == (400 if wish else 200)
