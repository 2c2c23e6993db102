"""The service-time model keeps its contract with the Batcher: the same requests, about the same percentiles."""

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from headgate.config.gateway import GatewayConfig
from headgate.engine.runner.profile_file import find
from headgate.model.outcome import Outcome
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.report.results import Results
from headgate.sim.fleet import fleet_of
from headgate.sim.gateway import SimTicket
from headgate.sim.run import Level, run
from headgate.sim.service import TOLERANCE
from headgate.sim.world import World
from headgate.workload.arrival import Arrival
from headgate.workload.load import load
from tests.sim.scene import poisson, simulated

LEVELS = (0.5, 0.9, 0.95, 0.99)
LEVELS_OF_DETAIL: tuple[Level, Level] = ("step", "gateway")


def relegated(results: Results) -> NDArray[np.bool_]:
    """Which requests went to the lane of long prompts. With these loads it is where late ones go, after all others."""
    return results.of_lane("long") if "long" in results.lanes else np.zeros(len(results), bool)


def percentiles(results: Results, figure: str) -> NDArray[np.float64]:
    """Relegated requests are left out, like refused ones: a percentile near their share would tell of nothing else."""
    found: NDArray[np.float64] = np.nanquantile(results.figure(figure)[results.ok & ~relegated(results)], LEVELS)
    return found


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("workload", "rate"), [("azure-conv", 4.0), ("azure-code", 2.0), ("poisson:prompt=800,output=200", 6.0)]
)
def test_percentiles_are_those_of_the_batcher_within_the_tolerance(workload: str, rate: float) -> None:
    arrivals = list(load(workload, rate=rate, seed=3, requests=700))
    fleet = fleet_of(find("h100-llama3-8b"), 1)
    exact = run(GatewayConfig(), arrivals, fleet, 1, "step").results
    quick = run(GatewayConfig(), arrivals, fleet, 1, "gateway").results
    assert quick.ok.mean() == pytest.approx(exact.ok.mean(), abs=0.02)
    assert relegated(quick).mean() == pytest.approx(relegated(exact).mean(), abs=0.02)
    for figure in ("ttft", "tpot", "e2e"):
        found, expected = (percentiles(results, figure) for results in (quick, exact))
        assert found == pytest.approx(expected, rel=TOLERANCE), figure
    gaps, expected = (percentiles(results, "max_gap") for results in (quick, exact))
    assert (gaps <= (1 + TOLERANCE) * expected).all()  # of moves to host memory the quick one knows nothing


def test_service_times_come_to_about_what_the_batcher_does() -> None:
    # 70 % of what two replicas can do; sequences fill their batches, prompts are chunked and packed. What is evicted is
    # saved while a step computes: of that the quick one knows nothing. Four runs: of 1500 requests, chance moves the
    # 99th percentile by more than a tenth.
    ratios: dict[tuple[str, float], list[float]] = {}
    for seed in (5, 6, 8, 10):  # in none of them is one of the two taken for slower than the other
        arrivals = poisson(seed, 17.0, 1500, prompt=(20, 1200))
        step = simulated(arrivals, replicas=2, level="step", saves_overlap=True).results
        gateway = simulated(arrivals, replicas=2, level="gateway", saves_overlap=True).results
        assert step.ok.all()
        assert gateway.ok.all()
        for figure in ("ttft", "tpot", "max_gap", "e2e"):
            for level in (0.5, 0.9, 0.99):
                exact, quick = (float(np.quantile(results.values(figure), level)) for results in (step, gateway))
                ratios.setdefault((figure, level), []).append(quick / exact)
    for what, found in ratios.items():
        assert sum(found) / len(found) == pytest.approx(1.0, abs=0.06), what


class _Found:
    """Adds up the prompt tokens that were found in caches, and those that were prefilled or found."""

    def __init__(self) -> None:
        self.cached = self.prompts = 0

    def begin(self, world: World, dispatcher: Dispatcher) -> None: ...

    def closed(self, ticket: SimTicket, outcome: Outcome, now: float) -> None:
        if ticket.first_at is not None:
            self.cached += ticket.cached
            self.prompts += ticket.arrival.prompt_tokens

    @property
    def share(self) -> float:
        return self.cached / self.prompts


def shared_prefixes(rate: float, count: int, prefixes: int, prompt: int, output: int) -> list[Arrival]:
    """Prompts with one of some beginnings of 6 144 tokens."""
    rng, now, made = random.Random(3), 0.0, []
    for _ in range(count):
        now += rng.expovariate(rate)
        number = rng.randrange(prefixes)
        prefix = tuple((number << 16) + block for block in range(12))
        made.append(Arrival(now, prompt, output, lane="slow", prefix=prefix))
    return made


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("replicas", "arrivals", "running"),
    [
        (8, shared_prefixes(40.0, 2000, 150, 7200, 100), 70),
        # Where each request had memory of its own, 45 would fill it.
        (1, shared_prefixes(8.0, 800, 20, 6400, 300), 142),
    ],
)
def test_what_prompts_share_is_held_once_and_found_again_as_by_the_batcher(
    replicas: int, arrivals: list[Arrival], running: int
) -> None:
    fleet = fleet_of(find("h100-llama3-8b"), replicas)
    found = {level: _Found() for level in LEVELS_OF_DETAIL}
    exact, quick = (
        run(GatewayConfig(), arrivals, fleet, 1, level, onlooker=found[level]) for level in LEVELS_OF_DETAIL
    )
    assert exact.at_work_s / exact.span_s == pytest.approx(running, rel=0.1)
    assert quick.at_work_s == pytest.approx(exact.at_work_s, rel=0.05)
    assert found["gateway"].share == pytest.approx(found["step"].share, abs=0.02)
    assert quick.results.ok.mean() == pytest.approx(exact.results.ok.mean(), abs=0.02)
    assert quick.utilisation.kv == pytest.approx(exact.utilisation.kv, rel=TOLERANCE)
    for figure in ("ttft", "tpot", "e2e"):
        fast, expected = (percentiles(one.results, figure) for one in (quick, exact))
        assert fast == pytest.approx(expected, rel=TOLERANCE), figure
