"""What scripts read: `--json` prints one JSON document and nothing else, and the status is the same."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.__main__ import app
from headgate.cli.setup.lines import run
from tests.engine.process import ask
from tests.gateway.test_gateway import chat, double, eventually, gateway

pytestmark = pytest.mark.timeout(90)
MODELS = [
    {"name": "assistant", "versions": [{"name": "v1", "model": "one", "weight": 1}, {"name": "v2", "model": "two"}]}
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("gateway")
    with (
        double(model="one") as (_, one),
        double(model="two") as (_, two),
        gateway(folder, {"models": MODELS}, one, two) as where,
    ):
        asked, mine = chat("n=2", model="assistant"), {"x-request-id": "mine"}
        assert ask(f"{where}/v1/chat/completions", asked, mine)[0] == 200
        yield where


def said(capsys: pytest.CaptureFixture[str], url: str, words: str, status: int = 0) -> Any:
    capsys.readouterr()
    assert run(app, [*words.split(), "--json", "--url", url]) == status
    told = capsys.readouterr()
    assert told.err == ""
    return json.loads(told.out)


def test_each_prints_one_document(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    why = said(capsys, url, "why mine")
    assert why["record"]["id"] == "mine"
    assert why["explanation"]["headline"]
    assert [row["id"] for row in said(capsys, url, "slow --last 5m --by ttft")["slow"]] == ["mine"]
    assert said(capsys, url, "slow --lane batch")["slow"] == []
    assert len(said(capsys, url, "fleet")["known"]) == 2
    assert [model["name"] for model in said(capsys, url, "rollout status")] == ["assistant"]
    assert said(capsys, url, "rollout start assistant v2 --mode split --share 20%")["step"]["share"] == 0.2
    assert said(capsys, url, "rollout rollback assistant")["step"]["stage"] == "rolled_back"


def test_doctor_prints_its_findings_and_fails_as_without(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = said(capsys, url, "doctor --no-probe")
    assert report["ready"] is True
    assert isinstance(report["findings"], list)
    assert report["url"] == url


def test_doctor_of_a_gateway_that_is_down_fails_with_the_same_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with double() as (engine, where), gateway(tmp_path, {"health": {"probe_interval_s": 0.1}}, where) as url:
        engine.kill()
        engine.wait()
        eventually(lambda: ask(f"{url}/health/ready")[0] != 200, within_s=30)
        assert said(capsys, url, "doctor --no-probe", status=1)["ready"] is False
