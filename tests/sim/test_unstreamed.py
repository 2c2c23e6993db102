"""Unstreamed requests in a healthy fleet change nothing: benchmarks/unstreamed.py over minutes instead of an hour."""

from dataclasses import replace

import pytest
from benchmarks.unstreamed import START, Case, flaws, simulated

from headgate.policy.profile import PROFILES
from headgate.sim.fleet import dilated
from headgate.sim.run import Level
from headgate.workload.arrival import Arrival
from headgate.workload.load import load

pytestmark = pytest.mark.timeout(120)

MIXED = Case(name="mixed", workload="poisson:rate=20,prompt=50-800,output=100-300")
MINUTES_S = 150.0


@pytest.mark.parametrize("tells", [False, True], ids=["tells nothing", "tells"])
def test_no_replica_is_put_out_no_alert_raised_and_no_limit_cut(tells: bool) -> None:
    case = replace(MIXED, tells=tells)
    streamed = simulated(case, 0.0, MINUTES_S)
    assert streamed.limits == (START,) * 4
    for share in (0.6, 0.95, 1.0):
        found = simulated(case, share, MINUTES_S)
        assert flaws(found, streamed) == []
        assert (found.ejections, found.refused, found.alerts, found.lowest) == (0, 0, (), START)
        if share < 1 or tells:
            # Routing's prefill speed, which was up to 240 times what it is.
            for measured, usual in zip(found.prefill_token_ms, streamed.prefill_token_ms, strict=True):
                assert measured < 3 * usual


@pytest.mark.parametrize("level", ["step", "gateway"])
def test_both_simulated_engines_tell_or_not_as_they_are_told(level: Level) -> None:
    for tells, spread in ((True, 1.0), (False, 0.0)):
        found = simulated(replace(MIXED, tells=tells), 1.0, 20.0, level)
        learned = [each for each in found.prefill_token_ms if each != 0.5]  # what it is taken for before
        assert bool(learned) is bool(spread)


@pytest.mark.parametrize("share", [0.0, 0.6, 1.0])
def test_a_slow_replica_is_still_found(share: float) -> None:
    slow = dilated(PROFILES[MIXED.profile], 6.0).profile
    assert simulated(MIXED, share, 200.0, slowed=slow).ejections >= 1


@pytest.mark.parametrize("share", [0.0, 0.6])
def test_the_fuller_one_of_two_is_not_taken_for_slow(share: float) -> None:
    case = Case(name="full", workload="poisson:rate=30,prompt=100-3000,output=300", replicas=2)
    assert simulated(case, share, 400.0).ejections == 0


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
