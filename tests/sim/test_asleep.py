"""A simulated warm pool that sleeps: the policies of the live fleet, with a modelled wake-up."""

from dataclasses import replace

import pytest

from headgate.config.scale import ScaleConfig
from headgate.policy.scaling.scale import Scaler
from headgate.sim.fleet import SimGroup
from headgate.sim.run import Level
from headgate.sim.scaling import report
from headgate.sim.scaling.autoscale import Outcomes, Scaled, autoscale
from headgate.sim.scaling.compare import Setting, judged
from headgate.workload.arrival import Arrival
from tests.sim.scene import CONFIG, machine

WAKE_S = 2.0
MEMBER = SimGroup(profile=machine(), slots=4, cold_start_s=600.0, wake_s=WAKE_S)
ASLEEP = ScaleConfig(min=1, max=4, warm=3, forecast=False, sleep_after_s=20.0)
BURST = [
    *(Arrival(number / 2, 100, 100) for number in range(100)),
    *(Arrival(50.0 + number / 8, 100, 100, prefix=(1,)) for number in range(400)),
]


def run(scale: ScaleConfig, level: Level) -> Outcomes:
    scaled = Scaled(member=MEMBER, scaler=Scaler(scale), at_first=1, parked_at_first=3)
    return autoscale(CONFIG, BURST, scaled, 1, level)


@pytest.mark.parametrize("level", ["gateway", "step"])
def test_what_a_burst_needs_is_woken_and_nobody_is_refused_for_its_sleep(level: Level) -> None:
    found, awake = run(ASLEEP, level), run(replace(ASLEEP, sleep_after_s=None), level)
    assert found.wake_ups >= 2
    assert awake.wake_ups == awake.asleep_s == 0
    assert not awake.held_s
    assert found.held_s
    assert max(found.held_s) <= WAKE_S + 1.5
    assert found.simulated.results.ok.mean() == 1.0
    assert 30 < found.asleep_s < found.replica_s
    assert found.samples[0].asleep == 0


def test_the_report_tells_what_slept() -> None:
    setting = Setting(config=CONFIG, scale=ASLEEP, member=MEMBER, arrivals=lambda: BURST, targets=())
    case = judged(setting, "as configured", run(ASLEEP, "gateway"))
    (sentence,) = report.sentences([case])
    assert "asleep" in sentence
    assert report.as_dict(case)["wake_ups"] == case.outcomes.wake_ups
