"""Verdicts: rarely wrong about equals, and not blind to a difference."""

import numpy as np
import pytest

from headgate.report.compare import FigureDifference, compare, judged, pairs, same_arrivals
from headgate.report.results import Results, Rows
from tests.report.made import made


@pytest.mark.timeout(60)
def test_equals_are_seldom_told_apart() -> None:
    """Each line by itself errs one time in twenty; a whole comparison does not err more often than that either, though
    it has thirty lines."""
    lines = wrong = 0
    comparisons_wrong = 0
    for seed in range(30):
        found = compare(made(seed, 900), made(1000 + seed, 900), seed=seed)
        chances = [one.chance for one in found if one.chance is not None]
        assert len(chances) >= 25
        lines += len(chances)
        wrong += sum(chance < 0.05 for chance in chances)
        comparisons_wrong += any(one.verdict == "real" for one in found)
    assert wrong / lines == pytest.approx(0.05, abs=0.025)
    assert comparisons_wrong <= 5  # 5 % of 30 is 1.5; more than 5 comes up once in three hundred


def test_a_fifth_more_is_seen_in_every_lane_and_in_nothing_else() -> None:
    found = compare(made(3, 9000), made(53, 9000, factor=1.2))
    real = {(one.what, one.lane) for one in found if one.verdict == "real"}
    for lane in ("fast", "slow", "agents", ""):
        assert ("p50 TTFT", lane) in real
    assert ("p95 TTFT", "") in real
    assert ("p99 TTFT", "") in real
    assert not {what for what, _ in real} & {"p50 TPOT", "p95 TPOT", "p99 TPOT", "refused"}
    median = next(one for one in found if (one.what, one.lane) == ("p50 TTFT", ""))
    assert median.low is not None
    assert median.high is not None
    assert median.low < 0.2 < median.high
    assert median.high - median.low < 0.15


def test_more_refusals_and_less_that_is_good_are_seen() -> None:
    found = {(one.what, one.lane): one for one in compare(made(1, 4000), made(2, 4000, refused=0.12))}
    assert found["refused", ""].verdict == "real"
    assert found["refused", ""].change == pytest.approx(0.07, abs=0.02)
    assert found["good", ""].verdict == "real"
    assert found["good", ""].change < 0


def test_too_few_requests_get_no_verdict() -> None:
    found = compare(made(1, 150), made(2, 150, factor=3.0))
    assert all(one.verdict == "too few" for one in found if one.what.startswith("p99"))
    assert all(one.low is None for one in found if one.verdict == "too few")


def test_only_lanes_that_both_have_are_compared() -> None:
    found = compare(made(1, 500, lanes=("fast", "old")), made(2, 500, lanes=("fast", "new")))
    assert {one.lane for one in found} == {"fast"}


def test_the_same_file_twice_differs_in_nothing() -> None:
    results = made(1, 600)
    assert not [one for one in compare(results, results) if one.verdict == "real"]


def test_many_lines_need_stronger_evidence_each() -> None:
    def line(chance: float) -> FigureDifference:
        return FigureDifference(lane="fast", what="x", unit="ms", before=1.0, after=2.0, chance=chance)

    assert [one.verdict for one in judged([line(0.03)])] == ["real"]
    assert [one.verdict for one in judged([line(0.03), line(0.04)])] == ["not told apart"] * 2
    several = judged([line(0.04), line(0.001), line(0.5), line(0.012)])
    assert [one.verdict for one in several] == ["not told apart", "real", "not told apart", "real"]


def test_what_is_said() -> None:
    told = FigureDifference(
        lane="fast",
        what="p99 TTFT",
        unit="ms",
        before=0.412,
        after=0.198,
        low=-0.58,
        high=-0.44,
        chance=0.0,
        verdict="real",
    )
    assert str(told) == "p99 TTFT fast: 412 → 198 ms, −52 % [−58, −44], real"
    share = FigureDifference(
        lane="", what="good", unit="%", before=0.995, after=0.95, low=-0.06, high=0.0004, chance=0.2
    )
    assert str(share).startswith(
        "good all lanes: 99.50\N{NARROW NO-BREAK SPACE}% → 95.0\N{NARROW NO-BREAK SPACE}%, −4.5 points [−6.0, 0]"
    )


# -- the same arrivals --------------------------------------------------------------------------------------------


def bursts(factor: float, seed: int = 5, shift_s: float = 0.0) -> Results:
    """Bursts that make everything a hundred times slower, in both; and each a few percent slower, in one."""
    rng, rows, noise = np.random.default_rng(seed), Rows(), np.random.default_rng(77)
    for number in range(3000):
        slow = 100.0 if (number // 60) % 10 == 0 else 1.0
        ttft = 0.05 * slow * rng.lognormal(0, 0.5) * factor * noise.lognormal(0, 0.01)
        rows.add(at_s=number * 0.05 + shift_s, lane="fast", ttft_s=ttft, e2e_s=2 * ttft, output_tokens=2)
    return rows.results(f"{factor}", source="simulation")


def verdicts(before: Results, after: Results) -> dict[str, str]:
    return {one.what: one.verdict for one in compare(before, after)}


def test_a_small_difference_on_the_same_arrivals_is_told_apart() -> None:
    paired, apart = verdicts(bursts(1.0), bursts(1.03)), verdicts(bursts(1.0), bursts(1.03, shift_s=0.001))
    assert paired["p50 TTFT"] == paired["p95 TTFT"] == "real"
    assert apart["p95 TTFT"] == "not told apart"
    assert same_arrivals(bursts(1.0), bursts(1.03))
    assert not same_arrivals(bursts(1.0), bursts(1.0, shift_s=0.001))
    assert not same_arrivals(Rows().results("a", source="bench"), Rows().results("b", source="bench"))


def test_the_same_twice_is_no_difference() -> None:
    assert set(verdicts(bursts(1.0), bursts(1.0)).values()) <= {"not told apart", "too few"}
    assert {(one.faster, one.slower, one.same) for one in pairs(bursts(1.0), bursts(1.0))} == {(0, 0, 3000)}


def test_each_request_beside_itself() -> None:
    ttft, e2e = pairs(bursts(1.0), bursts(0.8))
    assert (ttft.faster, ttft.slower, ttft.lane) == (3000, 0, "fast")
    assert ttft.change == pytest.approx(-0.2)
    assert str(e2e) == "fast e2e of each request beside itself: 3000 faster, 0 slower, 0 the same; −20 % at the median"
    assert pairs(bursts(1.0), bursts(0.8, shift_s=1.0)) == []
