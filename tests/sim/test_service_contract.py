"""The service-time model keeps its contract with the Batcher: the same requests, about the same percentiles."""

import numpy as np
import pytest

from headgate.config.gateway import GatewayConfig
from headgate.engine.runner.profile_file import find
from headgate.sim.fleet import fleet_of
from headgate.sim.run import run
from headgate.sim.service import TOLERANCE
from headgate.workload.load import load
from tests.sim.scene import poisson, simulated

LEVELS = (0.5, 0.9, 0.95, 0.99)


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
    for figure in ("ttft", "tpot", "e2e"):
        found, expected = (np.quantile(results.values(figure), LEVELS) for results in (quick, exact))
        assert found == pytest.approx(expected, rel=TOLERANCE), figure
    gaps, expected = (np.quantile(results.values("max_gap"), LEVELS) for results in (quick, exact))
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
