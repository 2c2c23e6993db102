"""The league's recipes do what their rivals' rules say, and its oracle knows the truth."""

import inspect
import random
from collections.abc import Iterator
from typing import Any

import pytest

from headgate.model.event import Arrived, Command, Dispatch, Ended, FirstToken
from headgate.model.outcome import Outcome
from headgate.model.request import Request
from headgate.policy.replicas.prefix_index import PrefixLinks
from headgate.workload.arrival import Arrival

pytestmark = pytest.mark.interpreted_only("the oracle's index is a subclass of a compiled class")


class FakeEngine:
    """An engine with gauges that a test sets."""

    kv_tokens, step_tokens, prefill_tokens_per_s = 400_000, 768, 30_000.0

    def __init__(self, name: str) -> None:
        self.id = name
        self.waiting = 0
        self.kv_share = 0.0
        self.has: dict[str, int] = {}

    def cached(self, request: Request) -> int:
        return self.has.get(request.id, 0)


def ask(name: str, prompt: str = "", tokens: int = 1000) -> Request:
    """A prompt of one link per letter."""
    prefix = tuple(prompt[: end + 1].encode() for end in range(len(prompt)))
    return Request(
        id=name, arrived=0.0, model="", lane="slow", priority=1, wait_until=9.0, first_token_by=9.0,
        prompt_tokens=tokens, prefix=prefix,
    )  # fmt: skip


class Played:
    """A recipe before fake engines."""

    def __init__(self, recipe: str, engines: int = 2) -> None:
        from benchmarks.league_rivals import RIVALS

        self.engines = [FakeEngine(f"e{number}") for number in range(engines)]
        self.rival = RIVALS[recipe](self.engines, random.Random(1))
        self.now = 0.0

    def send(self, request: Request) -> list[str]:
        self.now += 1.0
        return _sent(self.rival.on(Arrived(request), self.now))


def _sent(commands: list[Command]) -> list[str]:
    return [f"{one.request_id} {one.replica_id}" for one in commands if isinstance(one, Dispatch)]


def where(sent: list[str]) -> str:
    assert len(sent) == 1
    return sent[0].split()[1]


def test_a_recipe_has_at_most_a_hundred_lines() -> None:
    from benchmarks.league_rivals import RIVALS

    for recipe in RIVALS.values():
        assert len(inspect.getsource(recipe).splitlines()) <= 100


def test_least_request_counts_what_is_under_way() -> None:
    played = Played("least request")
    first = where(played.send(ask("a")))
    assert where(played.send(ask("b"))) != first
    played.rival.on(Ended("a", Outcome.COMPLETED), 9.0)
    assert where(played.send(ask("c"))) == first


@pytest.mark.parametrize("recipe", ["sglang cache-aware", "vllm cache-aware"])
def test_cache_aware_goes_to_the_holder_until_loads_are_apart(recipe: str) -> None:
    played = Played(recipe)
    holder = where(played.send(ask("first", "abcd")))
    seen = [where(played.send(ask(f"{number}", "abcde"))) for number in range(80)]
    apart = 65 if recipe.startswith("sglang") else 33
    assert seen[: apart - 1] == [holder] * (apart - 1)
    assert set(seen[apart:]) != {holder}


def test_llmd_weighs_the_prefix_against_the_queue() -> None:
    played = Played("llm-d scorers")
    holder = where(played.send(ask("first", "abcd")))
    assert where(played.send(ask("second", "abcd"))) == holder
    engine = next(engine for engine in played.engines if engine.id == holder)
    engine.waiting, engine.kv_share = 5, 0.9
    # 3 for the prefix is less than 2 for the queue and 1.8 for the memory.
    assert where(played.send(ask("third", "abcd"))) != holder


def test_llmd_sticks_until_the_holder_has_eighteen_seconds_more_to_prefill() -> None:
    played = Played("llm-d sticky")
    holder = where(played.send(ask("first", "abcd", 100_000)))
    assert where(played.send(ask("second", "abcd", 100_000))) == holder
    many = [where(played.send(ask(letter, f"abcd{letter}", 1_000_000))) for letter in "stuvwxyz"]
    assert many[0] == holder
    assert set(many) != {holder}


def test_dynamo_counts_uncached_tokens_and_memory() -> None:
    played = Played("dynamo")
    played.engines[1].has["a"] = 900
    assert where(played.send(ask("a", "ab"))) == "e1"
    assert where(played.send(ask("b", "xy"))) == "e0"


def test_dynamo_lets_classes_take_turns_by_their_quanta_while_all_engines_are_busy() -> None:
    played = Played("dynamo", engines=1)
    assert played.send(ask("busy", tokens=20_000))
    for number in range(8):
        assert not played.send(ask(f"long{number}", tokens=4096))
        assert not played.send(ask(f"short{number}", tokens=1024))
    sent = _sent(played.rival.on(FirstToken("busy"), 99.0))
    names = [one.split()[0] for one in sent]
    # 2 048 tokens of short ones for 512 of long ones, until 12 288 tokens are at the engine.
    assert sum(name.startswith("short") for name in names[:8]) == 8
    assert any(name.startswith("long") for name in names)


def arrivals() -> Iterator[Arrival]:
    rng, at = random.Random(5), 0.0
    for _ in range(60):
        at += rng.expovariate(12.0)
        group = rng.randrange(6)
        yield Arrival(at, 3000, 20, prefix=tuple(100 * group + place for place in range(5)), tenant="t")


@pytest.fixture(scope="module")
def runs() -> dict[str, Any]:
    from benchmarks.league_rivals import RIVALS
    from benchmarks.league_world import ORACLE, OURS, PLAIN, play

    return {entry: play(entry, list(arrivals()), 2, 1, 30.0) for entry in (OURS, PLAIN, ORACLE, *RIVALS)}


def test_every_entry_answers_every_request_once(runs: dict[str, Any]) -> None:
    asked = sorted(arrival.at_s for arrival in arrivals())
    for entry, played in runs.items():
        assert sorted(answer.arrival.at_s for answer in played.answers) == asked, entry
        assert {answer.outcome for answer in played.answers} == {Outcome.COMPLETED}, entry


def test_the_same_seed_gives_the_same_answers(runs: dict[str, Any]) -> None:
    from benchmarks.league_world import play

    for entry in ("oracle", "dynamo"):
        again = play(entry, list(arrivals()), 2, 1, 30.0)
        assert [one.ttft_s for one in again.answers] == [one.ttft_s for one in runs[entry].answers]


def test_those_who_know_of_prefixes_find_more_in_caches(runs: dict[str, Any]) -> None:
    cached = {entry: sum(answer.cached for answer in played.answers) for entry, played in runs.items()}
    for entry in ("headgate", "oracle", "sglang cache-aware", "llm-d scorers", "llm-d sticky"):
        assert cached[entry] > cached["power of two"], cached


def test_the_oracle_expects_what_the_engine_then_finds() -> None:
    from benchmarks import league_world

    expected: list[int] = []

    class Noting(league_world.TrueIndex):
        def remember(self, request: Request, links: PrefixLinks, tokens: int) -> int:
            guess = self.guess(request.prefix, request.link_tokens, request.prompt_tokens, links)
            expected.append(int(guess.tokens))
            return super().remember(request, links, tokens)

    kept, league_world.TrueIndex = league_world.TrueIndex, Noting  # type: ignore[misc]
    try:
        played = league_world.play(league_world.ORACLE, list(arrivals()), 2, 1, 30.0)
    finally:
        league_world.TrueIndex = kept  # type: ignore[misc]
    found = sum(answer.cached for answer in played.answers)
    assert found > 50_000
    assert sum(expected) == pytest.approx(found, rel=0.05)


def test_good_is_judged_by_the_workloads_own_promise() -> None:
    from benchmarks.league_mix import Slo
    from benchmarks.league_world import Answered

    streamed, whole = Arrival(0.0, 100, 11), Arrival(0.0, 100, 11, stream=False)
    slo = Slo(1.0, 0.1)
    assert slo.good(Answered(streamed, Outcome.COMPLETED, 1.0, 0.1, 2.0))
    assert not slo.good(Answered(streamed, Outcome.COMPLETED, 1.1, 0.1, 2.1))
    assert not slo.good(Answered(streamed, Outcome.COMPLETED, 1.0, 0.11, 2.1))
    assert slo.good(Answered(whole, Outcome.COMPLETED, None, None, 2.1))
    assert not slo.good(Answered(whole, Outcome.COMPLETED, None, None, 2.11))
    assert not slo.good(Answered(streamed, Outcome.QUEUE_FULL))
    assert not slo.good(Answered(streamed, None))
