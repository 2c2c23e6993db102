"""`headgate blame`: who cost whom how much of its p99, in a terminal."""

import json
from collections.abc import Iterator

import pytest

from headgate.cli.terminal import blame_client
from headgate.model.clock import monotonic
from tests.observe.test_admin import Scene
from tests.test_client import gateway, refused, shown


def greedy_and_calm(it: Scene) -> None:
    """Two tenants at one replica: three long prompts of the one delay the last request of the other."""
    now = monotonic()
    for number in range(40):
        it.close(id=f"usual-{number}", tenant="calm", at=now - 100 + number)
    for number in range(3):
        it.close(id=f"long-{number}", tenant="greedy", at=now - 20, prompt_tokens=9000, first_s=1.5, stream_s=0.0)
    it.close(id="late", tenant="calm", at=now - 19.9, first_s=1.2)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with gateway(greedy_and_calm) as where:
        yield where


def test_it_says_first_who_costs_whom_most(url: str) -> None:
    lines = shown(blame_client.blame, url, None, width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("greedy costs calm most: 1.")
    assert " of 1.20 s at p99 (9" in lines[0]
    assert lines[3].split()[:2] == ["greedy", "calm"]
    rows = {line.split()[0]: line.split() for line in lines[5:]}
    assert rows["calm"][1] == "41"
    assert rows["calm"][-1] == "late"
    assert rows["greedy"][1] == "3"


def test_where_none_costs_another_that_is_said(url: str) -> None:
    text = shown(blame_client.blame, url, None, lane="slow")
    assert text.startswith("No tenant has had an answer in lane slow in the last 300 s.")

    def alone(it: Scene) -> None:
        for number in range(60):
            it.close(id=f"r-{number}", tenant="only")

    with gateway(alone) as where:
        text = shown(blame_client.blame, where, None, by="e2e")
    assert text.startswith("No tenant costs another a notable part of its p99.")
    assert "whom" not in text
    assert "p99 of the whole answer, 60 answers" in text


def test_a_script_gets_json(url: str) -> None:
    told = json.loads(shown(blame_client.blame, url, None, as_json=True))
    assert [(cost["who"], cost["whom"]) for cost in told["costs"]] == [("greedy", "calm")]


def test_what_can_not_be_asked_is_one_line(url: str) -> None:
    assert "lane must be one of" in refused(blame_client.blame, url, None, lane="nope")
    assert "--last" in refused(blame_client.blame, url, None, last="yesterday")
