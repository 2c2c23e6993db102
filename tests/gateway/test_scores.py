"""Scores of a rollout's answers: posted by request or version, or given by a scorer that sees both answers."""

import asyncio
import json
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headgate.config.models import CanaryConfig, ModelConfig, QualityConfig, ScorerConfig, ShadowConfig
from headgate.model.clock import monotonic, wall
from headgate.model.outcome import Outcome
from headgate.surface.rollout_admin import MOST_SCORES
from headgate.upkeep import scores
from headgate.upkeep.scorer import MOST_BYTES, MOST_WORDS, Scorer
from headgate.upkeep.scores import ScoreBook
from headgate.wire.exchange import Exchange
from headgate.wire.router import Router
from tests.gateway import test_rollout
from tests.gateway.test_rollout import closed, started
from tests.gateway.versions import CHAT, Scene, awaited, scene
from tests.observe.test_rollout_admin import message, told
from tests.wire.serving import live, serving, until

SCORED = replace(CHAT, canary=CanaryConfig(quality=QualityConfig()))


async def post(it: Scene, *given: dict[str, Any], name: str = "chat") -> tuple[int, dict[str, Any]]:
    answer = await it.http("POST", f"/admin/rollout/{name}/scores", {"scores": list(given)})
    return answer.status, json.loads(answer.body)


def counted(it: Scene) -> dict[str, Any]:
    found = it.rollouts.status()[0]["scores"]
    assert found is not None
    return dict(found)


def made_up(it: Scene, **given: Any) -> None:
    """A request of this rollout that has just ended."""
    test_rollout.made_up(it, **{"wall": wall() + 1, **given})


# -- posted ------------------------------------------------------------------------------------------------------


@awaited
async def test_a_score_is_the_versions_that_answered_and_counts_once() -> None:
    async with scene(SCORED) as it:
        started(it.rollouts.start("chat", "v2", "split", 0.5))
        versions = {"v1": 0, "v2": 0}
        for number in range(12):
            assert (await it.ask(headers=(f"x-request-id: r-{number}",))).status == 200
        for one in it.records:
            versions[one.version] += 1
        assert min(versions.values()) > 0
        given = [{"request": f"r-{number}", "score": 0.5} for number in range(12)]
        assert await post(it, *given) == (200, {"name": "chat", "taken": 12, "unknown": 0})
        assert counted(it) == {"canary": versions["v2"], "baseline": versions["v1"], "unknown": 0}
        assert (await post(it, *given))[1] == {"name": "chat", "taken": 0, "unknown": 12}
        assert (await post(it, {"request": "nobody's", "score": 1}))[1]["unknown"] == 1
        assert counted(it)["unknown"] == 13


@awaited
async def test_a_score_may_name_the_version_itself() -> None:
    async with scene(SCORED) as it:
        started(it.rollouts.start("chat", "v2", "split", 0.5))
        given = ({"version": "v2", "score": 1.0}, {"version": "v1", "score": 0}, {"version": "v9", "score": 0.5})
        assert (await post(it, *given))[1] == {"name": "chat", "taken": 2, "unknown": 1}
        (row,) = [row for row in it.rollouts.status()[0]["rows"] if row.figure == "quality"]
        assert (row.baseline, row.canary) == (0.0, 1.0)


@awaited
async def test_only_answers_of_this_rollout_can_be_scored_by_their_id() -> None:
    async with scene(SCORED) as it:
        made_up(it, id="before", version="v1", wall=1.0)
        started(it.rollouts.start("chat", "v2", "split", 0.5))
        made_up(it, id="failed", version="v2", outcome=Outcome.REPLICA_FAILED)
        made_up(it, id="other", version="v2", drawn_from="another")
        made_up(it, id="stood in", version="v1", fell_back="v2")
        made_up(it, id="fine", version="v2")
        names = ("before", "failed", "other", "stood in", "fine")
        given = [{"request": name, "score": 0.5} for name in names]
        assert (await post(it, *given))[1] == {"name": "chat", "taken": 1, "unknown": 4}
        assert counted(it)["canary"] == 1
        started(it.rollouts.rollback("chat"))
        made_up(it, id="late", version="v2", wall=wall() - 1)
        started(it.rollouts.start("chat", "v2", "split", 0.5))
        assert (await post(it, {"request": "late", "score": 1}))[1]["unknown"] == 1
        assert counted(it) == {"canary": 0, "baseline": 0, "unknown": 1}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "scores are a list"),
        ({"scores": [{"request": "r", "score": 1.01}]}, "scores are a list, each from 0 to 1"),
        ({"scores": [{"request": "r", "score": -0.1}]}, "each from 0 to 1"),
        ({"scores": [{"request": "r", "score": "good"}]}, "each from 0 to 1"),
        ({"scores": [{"request": "r", "score": None}]}, "each from 0 to 1"),
        ({"scores": [{"score": 1}]}, "of a request or of a version"),
        ({"scores": [{"score": 1, "request": "r", "version": "v1"}]}, "give one of the two"),
        ({"scores": [{"score": 1, "request": "r"}] * (MOST_SCORES + 1)}, f"at most {MOST_SCORES} scores at once"),
        ({"scores": [{"score": 1, "id": "r"}]}, "each from 0 to 1"),
    ],
)
@awaited
async def test_what_is_no_score_is_refused_with_its_reason(body: Any, said: str) -> None:
    async with scene(SCORED) as it:
        started(it.rollouts.start("chat", "v2", "split", 0.5))
        answer = await it.http("POST", "/admin/rollout/chat/scores", body)
        assert (answer.status, said in message(answer.body)) == (400, True), answer.body
        assert counted(it)["canary"] == 0


@awaited
async def test_scores_that_are_not_asked_for_or_come_without_a_rollout_are_refused() -> None:
    async with scene(CHAT) as it:
        started(it.rollouts.start("chat", "v2", "split", 0.5))
        status, answer = await post(it, {"version": "v2", "score": 1})
        assert (status, "models[].canary.quality" in answer["error"]["message"]) == (400, True)
        assert it.rollouts.status()[0]["scores"] is None
    async with scene(SCORED) as it:
        status, answer = await post(it, {"version": "v2", "score": 1})
        assert (status, answer["error"]["message"]) == (400, "nothing of chat is being tried out")
        assert it.rollouts.status()[0]["scores"] is None


@awaited
async def test_a_canary_with_lower_scores_is_rolled_back_by_itself() -> None:
    async with scene(SCORED) as it:
        started(it.rollouts.start("chat", "v2", "canary", None))
        rng, number = random.Random(1), 0
        while it.rollouts.status()[0]["stage"] == "canary":
            assert number < 20_000
            given = []
            for _ in range(200):
                canary, number = rng.random() < it.rollouts.status()[0]["share"], number + 1
                closed(it, canary, 1.0, rng)
                mean = 0.6 if canary else 0.8
                score = rng.betavariate(3 * mean, 3 * (1 - mean))
                given.append({"version": "v2" if canary else "v1", "score": score})
            it.instruments.catch_up()
            if it.rollouts.status()[0]["stage"] == "canary":
                assert (await post(it, *given))[0] == 200
                it.instruments.catch_up()
        status = it.rollouts.status()[0]
        assert status["stage"] == "rolled_back"
        assert "its mean score is 0." in status["history"][-1].reason
        said = " ".join((await told(it, rollout_status)).split())
        assert "mean score 0.8" in said


def rollout_status(url: str, key: str | None, console: Any) -> None:
    from headgate.cli import rollout_client

    rollout_client.status(url, key, None, console)


@awaited
async def test_another_config_keeps_the_answers_that_may_be_scored_and_takes_another_scorer() -> None:
    async with scene(SCORED) as it:
        started(it.rollouts.start("chat", "v2", "split", 0.5))
        made_up(it, id="fine", version="v2")
        it.instruments.catch_up()
        it.rollouts.reconfigure((SCORED,))
        assert (await post(it, {"request": "fine", "score": 1}))[1]["taken"] == 1
        it.rollouts.reconfigure((scored_by("true"),))
        assert counted(it)["scorer"]["scored"] == 0
        it.rollouts.reconfigure(())
        assert it.rollouts.status() == []


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "MOST", 3)
    book = ScoreBook()
    for number in range(5):
        book.answered(str(number), number % 2 == 0)
    assert [book.whose(str(number)) for number in range(5)] == [None, None, True, False, True]
    assert book.unknown == 2


# -- a scorer ------------------------------------------------------------------------------------------------------


def scored_by(*command: str, url: str | None = None, **more: Any) -> ModelConfig:
    scorer = ScorerConfig(command=command, url=url, **more)
    canary = CanaryConfig(quality=QualityConfig(scorer=scorer))
    return replace(CHAT, canary=canary, shadow=ShadowConfig(share=0.99, concurrency=4))


COUNTS_WORDS = """
import json, sys
asked = json.load(sys.stdin)
assert asked["name"] == "chat" and asked["request"]["messages"], asked
print(json.dumps({"scores": {version: min(1, len(text) / 10) for version, text in asked["answers"].items()}}))
"""


@awaited
async def test_a_program_scores_what_both_versions_answered_and_no_client_notices() -> None:
    async with scene(scored_by(sys.executable, "-c", COUNTS_WORDS)) as it:
        started(it.rollouts.start("chat", "v2", "shadow", None))
        it.engines["chat-2"].word = "very good "
        for number in range(4):
            answer = await it.ask("n=3", stream=bool(number % 2))
            assert b"very" not in answer.body
            await until(lambda: scorer_of(it)["under_way"] == it.rollouts.status()[0]["shadow"]["under_way"] == 0)
        found = scorer_of(it)
        assert found["scored"] >= 3
        assert (found["failed"], found["last_error"]) == (0, "")
        assert counted(it)["canary"] == counted(it)["baseline"] == found["scored"]
        (row,) = [row for row in it.rollouts.status()[0]["rows"] if row.figure == "quality"]
        assert (row.baseline, row.canary) == (0.6, 1.0)  # three words each
        assert len(it.records) == 4
        assert it.rollouts.status()[0]["shadow"]["failed"] == 0
        assert "pairs scored, 0 failed" in await told(it, rollout_status)


def scorer_of(it: Scene) -> dict[str, Any]:
    return dict(counted(it)["scorer"])


@awaited
async def test_a_copy_that_fails_is_scored_no_more_than_one_that_says_nothing() -> None:
    async with scene(scored_by(sys.executable, "-c", COUNTS_WORDS)) as it:
        started(it.rollouts.start("chat", "v2", "shadow", None))
        it.engines["chat-2"].refuse = 1000
        while scorer_of(it)["left_out"] < 2:
            assert (await it.ask("n=1")).status == 200
            await until(lambda: it.rollouts.status()[0]["shadow"]["under_way"] == 0)
        assert scorer_of(it)["scored"] == 0
        it.engines["chat-2"].refuse = 0
        it.roster.leave("chat-2")
        before = scorer_of(it)["left_out"]
        while scorer_of(it)["left_out"] < before + 1:
            assert (await it.ask("n=1")).status == 200
            await until(lambda: it.rollouts.status()[0]["shadow"]["under_way"] == 0)


class Scoring:
    """A scorer, and what it told."""

    def __init__(self, config: ScorerConfig) -> None:
        self.told: list[tuple[str, dict[str, float]]] = []
        self.scorer = Scorer("chat", config, lambda name, found: self.told.append((name, found)), monotonic)

    async def ask(self, times: int = 1) -> None:
        for _ in range(times):
            self.scorer.take({"messages": []}, {"v1": "yes", "v2": "no"})
        await until(lambda: not self.scorer.under_way)


def program(text: str, **more: Any) -> ScorerConfig:
    return ScorerConfig(command=(sys.executable, "-c", text), **more)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("print('{')", "it did not say scores from 0 to 1"),
        ('print(\'{"scores": {"v1": 2, "v2": 0}}\')', "it did not say scores from 0 to 1"),
        ('print(\'{"scores": {"v1": 1}}\')', "it gave no score for v2"),
        ("import sys; sys.stderr.write('first\\nno model\\n'); sys.exit(3)", "it ended with status 3: no model"),
        ("raise SystemExit(1)", "it ended with status 1"),
        ("print('x' * 1_000_000)", "it did not say scores"),
        ("import sys; sys.stderr.write('x' * 1_000_000); sys.exit(1)", "it ended with status 1: xxx"),
        ("import time; time.sleep(60)", "no score within 0.5 s"),
    ],
)
@live
async def test_a_program_that_fails_has_given_no_score_and_its_reason_is_told(text: str, said: str) -> None:
    it = Scoring(program(text, timeout_s=0.5 if "sleep" in text else 4))
    await it.ask()
    assert (it.scorer.scored, it.scorer.failed, it.told) == (0, 1, [])
    assert said in it.scorer.last_error
    assert len(it.scorer.last_error) <= MOST_WORDS
    assert it.scorer.room


@live
async def test_a_program_that_is_not_there_has_given_no_score() -> None:
    it = Scoring(ScorerConfig(command=("/nowhere/score",)))
    await it.ask()
    assert "No such file" in it.scorer.last_error


@live
async def test_a_program_that_reads_nothing_may_score_all_the_same() -> None:
    it = Scoring(program('print(\'{"scores": {"v1": 0.5, "v2": 1, "v3": 0}}\')'))
    it.scorer.take({"messages": ["x" * 500_000]}, {"v1": "yes", "v2": "no"})
    await until(lambda: not it.scorer.under_way)
    assert it.told == [("chat", {"v1": 0.5, "v2": 1.0})]


@live
async def test_so_many_at_once_and_the_others_are_left_out() -> None:
    it = Scoring(program("import sys; sys.stdin.read()", concurrency=3))
    await it.ask(10)
    assert (it.scorer.failed, it.scorer.left_out) == (3, 7)


@live
async def test_a_program_is_ended_with_its_scorer(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    text = f"import os, time, pathlib; pathlib.Path({str(file)!r}).write_text(str(os.getpid())); time.sleep(60)"
    it = Scoring(program(text))
    it.scorer.take({}, {"v1": "", "v2": ""})
    await until(lambda: file.exists() and bool(file.read_text()))
    it.scorer.close()
    stat = Path(f"/proc/{file.read_text()}/stat")
    await until(lambda: not stat.exists() or stat.read_text().split()[2] == "Z")


Answering = Callable[[Exchange], None]


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b'{"scores": {"v1": 0.5, "v2": 0.25}}', ""),
        (500, b"{}", "it answered 500"),
        (200, b"nothing", "it did not say scores"),
        (200, b'{"scores": {"v2": 0.25}}', "it gave no score for v1"),
        (200, b"x" * (MOST_BYTES * 80), "longer"),
    ],
)
@live
async def test_an_address_scores_too(status: int, body: bytes, said: str) -> None:
    asked: list[Any] = []

    def answer(exchange: Exchange) -> None:
        asked.append((exchange.query, json.loads(exchange.body)))
        exchange.respond(status, body)

    async with serving(Router({("POST", "/score"): answer})) as served:
        it = Scoring(ScorerConfig(url=f"http://127.0.0.1:{served.port}/score?as=judge"))
        await it.ask()
        it.scorer.close()
    told = {"name": "chat", "request": {"messages": []}, "answers": {"v1": "yes", "v2": "no"}}
    assert asked == [("as=judge", told)]
    if said:
        assert (it.scorer.failed, it.told) == (1, [])
        assert said in it.scorer.last_error or said == "longer"
    else:
        assert it.told == [("chat", {"v1": 0.5, "v2": 0.25})]


@live
async def test_an_address_without_a_server_has_given_no_score() -> None:
    it = Scoring(ScorerConfig(url="http://127.0.0.1:1"))
    await it.ask()
    assert it.scorer.failed == 1
    assert it.scorer.last_error
    it.scorer.close()
    await asyncio.sleep(0)
