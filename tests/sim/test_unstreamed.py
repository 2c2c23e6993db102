"""Unstreamed requests in a healthy fleet change nothing: benchmarks/unstreamed.py over minutes instead of an hour."""

from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.unstreamed import START, flaws, kept, simulated, write
from benchmarks.unstreamed_cases import CASES, Case, Kind

from headgate.config.gateway import GatewayConfig
from headgate.machine.profile import PROFILES
from headgate.sim.fleet import SimFleet, SimGroup, dilated
from headgate.sim.run import Level, run
from headgate.workload.arrival import Arrival
from headgate.workload.load import load

pytestmark = pytest.mark.timeout(120)

MIXED = Case(name="mixed", workload="poisson:rate=20,prompt=50-800,output=100-300", for_s=150.0)


@pytest.mark.parametrize("tells", [0.0, 0.5, 1.0], ids=["tells nothing", "tells of half", "tells"])
def test_no_replica_is_put_out_no_alert_raised_and_no_limit_cut(tells: float) -> None:
    case = replace(MIXED, fleet=(Kind(tells=tells),))
    streamed = simulated(case, 0.0)
    assert streamed.limits == (START,) * 4
    for share in (0.6, 0.95, 1.0):
        found = simulated(case, share)
        assert flaws([found], [streamed]) == []
        assert (found.ejections, found.refused, found.alerts, found.lowest) == (0, 0, (), START)
        if share < 1 or tells:
            # Routing's prefill speed, which was up to 240 times what it is.
            for measured, usual in zip(found.prefill_token_ms, streamed.prefill_token_ms, strict=True):
                assert measured < 3 * usual


@pytest.mark.parametrize("level", ["step", "gateway"])
def test_both_simulated_engines_tell_or_not_as_they_are_told(level: Level) -> None:
    for tells, spread in ((1.0, 1.0), (0.0, 0.0)):
        found = simulated(replace(MIXED, fleet=(Kind(tells=tells),), for_s=20.0), 1.0, level)
        learned = [each for each in found.prefill_token_ms if each != 0.5]  # what it is taken for before
        assert bool(learned) is bool(spread)


@pytest.mark.parametrize("share", [0.0, 0.6, 1.0])
def test_a_slow_replica_is_still_found(share: float) -> None:
    slow = dilated(PROFILES[MIXED.fleet[0].profile], 6.0).profile
    assert simulated(replace(MIXED, for_s=200.0), share, slowed=slow).ejections >= 1


@pytest.mark.parametrize("share", [0.0, 0.6])
def test_the_fuller_one_of_two_is_not_taken_for_slow(share: float) -> None:
    load, two = "poisson:rate=30,prompt=100-3000,output=300", (Kind(count=2),)
    assert simulated(Case(name="full", workload=load, fleet=two, for_s=400.0), share).ejections == 0


@pytest.mark.parametrize(
    "name", ["bursts, two replicas", "A100 beside H100", "one of two tells", "4000 tokens unstreamed beside short ones"]
)
def test_nor_in_fleets_and_loads_of_other_kinds(name: str) -> None:
    (case,) = (replace(case, for_s=200.0) for case in CASES if case.name == name)
    streamed = simulated(case, 0.0)
    for share in (0.6, 0.95):
        assert flaws([simulated(case, share)], [streamed]) == []


def test_an_alert_is_a_flaw_also_where_all_is_streamed() -> None:
    found = replace(simulated(replace(MIXED, for_s=20.0), 0.0), alerts=("fast e2e_p95: too slow",))
    assert flaws([found], [found]) == ["1 alerts, the first: fast e2e_p95: too slow"]


def test_limits_are_compared_by_their_median_over_seeds() -> None:
    found = simulated(replace(MIXED, for_s=20.0), 0.6)
    low = replace(found, mean_limit=40.0, limits=(40.0,) * 4)
    assert flaws([found, low, found], [found] * 3) == []
    assert flaws([low, low, found], [found] * 3) == [
        "limits of 40, and 64 where all is streamed",
        "limits of 40 at the end, and 64 where all is streamed",
    ]


def test_what_was_found_is_kept_for_the_same_case_only(tmp_path: Path) -> None:
    case, out = replace(MIXED, for_s=20.0, shares=(0.0,)), tmp_path / "found.json"
    assert kept(out, [case]) == {}
    found = simulated(case, 0.0)
    assert write(out, [case], {(case.name, 0.0, 1): found}) == 0
    assert kept(out, [case]) == {(case.name, 0.0, 1): found}
    assert kept(out, [replace(case, for_s=30.0)]) == {}
    assert "| mixed |" in out.with_suffix(".md").read_text()


def test_the_same_requests_come_whatever_share_of_them_is_unstreamed() -> None:
    text = "poisson:rate=20,prompt=50-800,output=1-300,tenant=a|b"
    came = {share: list(load(f"{text},unstreamed={share:g}", seed=3, duration_s=60)) for share in (0.0, 0.3, 0.9, 1.0)}
    for share, arrivals in came.items():
        assert [said_of(one) for one in arrivals] == [said_of(one) for one in came[0.0]]
        assert sum(not one.stream for one in arrivals) / len(arrivals) == pytest.approx(share, abs=0.05)
    wider = {one.at_s for one in came[0.9] if not one.stream}
    assert {one.at_s for one in came[0.3] if not one.stream} < wider


def said_of(one: Arrival) -> tuple[float, int, int, str | None]:
    return (one.at_s, one.prompt_tokens, one.output_tokens, one.tenant)


def test_prompts_that_are_prefilled_in_turn_wait_no_longer_because_some_are_unstreamed() -> None:
    """Beside long documents, whose prefill takes seconds: batch waited 6.3 s instead of 0.09."""
    parts = (
        "chat=poisson:rate=35,prompt=100-400,output=8-40,lane=fast",
        "code=poisson:rate=13,prompt=100-4000,output=5-60,lane=slow",
        "docs=poisson:rate=2.3,prompt=4000-12000,output=100-300,lane=long",
        "batch=poisson:rate=17,prompt=500-2500,output=80-240,lane=batch",
    )
    waits_s = []
    for share in (0.0, 0.5):
        spec = "; ".join(f"{part},unstreamed={share:g}" for part in parts)
        fleet = SimFleet(members=(SimGroup(profile=PROFILES["h100-llama3-8b"], count=4, slots=32, tells=0.0),))
        made = run(GatewayConfig(), load(spec, seed=5, rate=70.0, duration_s=60.0), fleet, 5, "step")
        waits_s.append(float(made.results.values("queue", "batch").mean()))
    streamed_s, mixed_s = waits_s
    assert mixed_s < 2 * streamed_s + 0.1
