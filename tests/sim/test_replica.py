"""The simulated replica does what the Batcher says, and takes as long as the profile says."""

from dataclasses import replace

import numpy as np
import pytest

from headgate.config.engine import BatchConfig
from headgate.machine.profile import Residuals, StepCost
from headgate.machine.step_features import StepFeatures
from headgate.policy.batching.batch import Batcher
from headgate.report.results import Results
from headgate.sim.fleet import Delays, SimFleet, SimGroup
from headgate.sim.run import run
from headgate.workload.arrival import Arrival
from tests.sim.scene import CONFIG, machine, poisson, simulated


def test_a_lone_request_takes_exactly_what_the_profile_says() -> None:
    profile = machine()
    results = simulated([Arrival(1.0, 700, 5)]).results
    first = profile.step_s(StepFeatures(prefill=512, pairs=512 * 512))
    second = profile.step_s(StepFeatures(prefill=188, pairs=188 * (2 * 512 + 188)))
    steps = [profile.step_s(StepFeatures(decodes=1, context=701 + number)) for number in range(4)]
    assert results.ttft_s[0] == pytest.approx(first + second)
    assert results.e2e_s[0] == pytest.approx(first + second + sum(steps))
    assert results.tpot_s[0] == pytest.approx(sum(steps) / 4)
    assert results.max_gap_s[0] == pytest.approx(steps[-1])


def test_ways_between_client_gateway_and_engine_are_added() -> None:
    without = simulated([Arrival(1.0, 100, 5)]).results
    results = simulated([Arrival(1.0, 100, 5)], delays=Delays(accept_s=0.1, send_s=0.02, back_s=0.003)).results
    assert results.ttft_s[0] - without.ttft_s[0] == pytest.approx(0.123)
    assert results.e2e_s[0] - without.e2e_s[0] == pytest.approx(0.123)


def columns(results: Results) -> np.ndarray:
    return np.array([results.ttft_s, results.tpot_s, results.max_gap_s, results.e2e_s, results.queue_s])


@pytest.mark.interpreted_only("a compiled class can't be changed for a test")
@pytest.mark.parametrize("noise", [(), ((0.9, 1.0, 1.5), (1.1, 2.0))])
def test_quiet_steps_run_as_one_event_come_to_what_they_do_one_by_one(
    monkeypatch: pytest.MonkeyPatch, noise: tuple[tuple[float, ...], ...]
) -> None:
    arrivals = poisson(3, 6.0, 150)
    together = simulated(arrivals, decode_only=Residuals(1.0, noise))
    monkeypatch.setattr(Batcher, "_repeat", lambda self, rows: 1)
    one_by_one = simulated(arrivals, decode_only=Residuals(1.0, noise))
    assert one_by_one.events > 1.5 * together.events
    if not noise:
        np.testing.assert_allclose(columns(together.results), columns(one_by_one.results), rtol=1e-9)
    else:  # chance falls differently, since what was drawn for steps that were cut off is lost
        for mine, other in zip(columns(together.results), columns(one_by_one.results), strict=True):
            assert np.nanmedian(mine) == pytest.approx(np.nanmedian(other), rel=0.05)


def test_what_somebody_has_computed_before_is_not_computed_again() -> None:
    shared = (7, 8)
    apart = [Arrival(0.0, 1200, 4, prefix=shared), Arrival(5.0, 1200, 4, prefix=shared), Arrival(10.0, 1200, 4)]
    other = [Arrival(15.0, 1200, 4, prefix=(8, 7)), Arrival(20.0, 600, 4, prefix=(7,))]
    cold, warm, stranger, reversed_, shorter = simulated(apart + other).results.ttft_s
    saved = machine().cost.per_prefill * 1024
    assert warm < cold - saved
    assert stranger == pytest.approx(cold)
    assert reversed_ == pytest.approx(cold)
    assert shorter < warm


TOO_BOLD = BatchConfig(step_tokens=528, draft_batch=0, first_output_guess=1, headroom=0.0)
"""Admits more than there is memory for."""


def test_where_memory_is_short_somebody_is_swapped_out_and_all_end_well() -> None:
    arrivals = [Arrival(0.01 * number, 400, 300) for number in range(8)]
    roomy = simulated(arrivals)
    tight = simulated(arrivals, kv_tokens=4096, host_tokens=8192, batch=TOO_BOLD)
    assert tight.results.ok.all()
    assert tight.results.output_tokens.tolist() == [300] * 8
    assert tight.results.max_gap_s.max() > 4 * roomy.results.max_gap_s.max()  # while it was swapped out it was silent


def test_swapping_takes_the_time_that_bytes_take() -> None:
    arrivals = [Arrival(0.01 * number, 400, 300) for number in range(8)]
    tight = {"kv_tokens": 4096, "host_tokens": 8192, "batch": TOO_BOLD}
    quick = simulated(arrivals, load_bytes_per_s=None, save_bytes_per_s=None, **tight)  # type: ignore[arg-type]
    slow = simulated(arrivals, load_bytes_per_s=1e8, save_bytes_per_s=1e8, **tight)  # type: ignore[arg-type]
    assert slow.results.e2e_s.max() > quick.results.e2e_s.max() + 0.5


def test_a_request_longer_than_the_context_is_the_askers_fault() -> None:
    for level in ("step", "gateway"):
        results = simulated([Arrival(0.0, 4000, 200), Arrival(1.0, 100, 5)], level=level).results
        assert results.kind.tolist() == [3, 0]
        assert results.reasons[results.why[0]] == "400 invalid"


def test_an_answer_in_one_piece_has_no_first_token_of_its_own() -> None:
    results = simulated([Arrival(0.0, 100, 10, stream=False)]).results
    assert np.isnan(results.ttft_s[0])
    assert np.isnan(results.tpot_s[0])
    assert results.e2e_s[0] > 0.1


def test_a_slow_machine_chunks_prompts_so_that_running_streams_keep_their_gap() -> None:
    slow = StepCost(fixed=0.005, per_prefill=0.002, per_decode=0.001)
    arrivals = [Arrival(0.0, 50, 200), Arrival(1.0, 2000, 5)]
    for level in ("step", "gateway"):
        results = simulated(arrivals, cost=slow, level=level).results
        assert results.max_gap_s[0] < 0.21  # the fast lane's target is 0.2 s; the whole chunk would take a second
        assert results.max_gap_s[0] > 0.1


def test_one_that_is_believed_to_have_more_room_than_it_has_refuses_little_and_serves_as_much() -> None:
    """Four slots and a queue of two, and the gateway believes in sixty-four. Lanes refuse what is late: what is
    relegated waits for room, and a gateway that knows the slots relegates more."""
    profile = machine(slots=4)
    strict = replace(CONFIG, lanes=tuple(replace(lane, when_late="refuse") for lane in CONFIG.lanes))
    config = replace(profile.batch_config(), queue_limit=2)
    arrivals = poisson(5, 30.0, 600, prompt=(20, 100))

    def served(slots: int) -> tuple[int, int]:
        member = SimGroup(profile=profile, slots=slots, batch=config)
        made = run(strict, arrivals, SimFleet(members=(member,), delays=Delays(send_s=0.001, back_s=0.001)), 1, "step")
        return int((made.results.kind == 0).sum()), made.events

    (known, few), (believed, many) = served(6), served(64)
    assert known < 500, "it is more than it can take"
    assert believed > 0.9 * known
    assert many < 1.5 * few, "it is not asked over and over"
