"""Headgate's part of vLLM's steps, around a scheduler that hands them out as vLLM's does. The same with vLLM's own:
tests/vllm/test_scheduler.py."""

import statistics
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.policy.batching.estimate import StepShape
from headgate.vllm.hooks import LOGGED
from tests.vllm.doubles.mini import Asked, Driver, MiniVllm, Status, WithHeadgate


def two_cores(prompts: int, streams: int) -> float:
    """About SmolLM2 on two cores: 5 ms a prompt token, 60 ms for a step."""
    return 0.06 + 0.0035 * prompts + 0.002 * streams


def a_gpu(prompts: int, streams: int) -> float:
    return 0.008 + 0.00006 * prompts + 0.00005 * streams


def asked(number: str, prompt: int, say: int, at: float = 100.0, **more: Any) -> Asked:
    return Asked(number, prompt, say, at, **more)


def wishes(**said: float) -> SimpleNamespace:
    return SimpleNamespace(extra_args={f"headgate_{name}": value for name, value in said.items()})


def warmed(driver: Driver, scheduler: MiniVllm) -> None:
    """Serves a few requests, from which the durations of steps are learned."""
    comes = [(100.0, asked(f"w{number}", 400, 40)) for number in range(3)]
    driver.run(scheduler, comes)
    driver.now += 10.0


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("streams", [1, 4])
def test_a_stream_keeps_its_gap_beside_a_long_prompt(ahead: bool, streams: int) -> None:
    driver = Driver(two_cores)
    scheduler = WithHeadgate(lambda: driver.now, ahead=ahead, tokens=2048)
    warmed(driver, scheduler)
    at = driver.now
    comes = [(at, asked(f"s{number}", 40, 200, at)) for number in range(streams)]
    driver.run(scheduler, [*comes, (at + 3.0, asked("long", 1500, 4, at + 3.0))])
    gaps = [gap for number in range(streams) for gap in driver.gaps(f"s{number}")]
    assert max(gaps) < 0.22
    assert scheduler.counts.failures == 0
    assert scheduler.counts.out == 0
    long_ttft = driver.told["long"][0] - at - 3.0
    assert long_ttft < 1.6 * (60 / 200 + 1) * two_cores(1500, 0)  # the streams take a part of each step


def test_without_headgate_the_gap_is_the_whole_prompt() -> None:
    driver = Driver(two_cores)
    comes = [(100.0, asked("s", 40, 200)), (103.0, asked("long", 1500, 4, 103.0))]
    driver.run(MiniVllm(tokens=2048), comes)
    assert max(driver.gaps("s")) > 5.0


def test_planned_a_step_ahead_the_chunk_counts_from_when_the_step_can_begin() -> None:
    """The plan is made while the step before runs: a plan that took its own time for the beginning would believe that
    it had a step's time more."""
    driver = Driver(a_gpu)
    scheduler = WithHeadgate(lambda: driver.now, ahead=True, tokens=8192)
    warmed(driver, scheduler)
    at = driver.now
    stream = asked("s", 40, 400, at, sampling_params=wishes(gap_ms=50))
    driver.run(scheduler, [(at, stream), (at + 1.0, asked("long", 30_000, 4, at + 1.0))])
    assert max(driver.gaps("s")) < 0.055
    beside = [gap for gap in driver.gaps("s") if gap > 0.02]
    assert len(beside) > 20
    assert sorted(beside)[len(beside) // 2] > 0.03  # and what the target leaves is used


def test_a_target_is_raised_to_two_steps_as_they_last_on_a_machine_that_others_use_too() -> None:
    """Every fourth step takes five times as long: the fit, which goes by relative error, hardly sees it."""
    steps: list[float] = []

    def shared(prompts: int, streams: int) -> float:
        steps.append(two_cores(prompts, streams) * (5.0 if len(steps) % 4 == 3 else 1.0))
        return steps[-1]

    driver = Driver(shared)
    scheduler = WithHeadgate(lambda: driver.now, tokens=2048)
    at = driver.now
    driver.run(scheduler, [(at, asked("s", 40, 600, at, sampling_params=wishes(gap_ms=100)))])
    mean_s = statistics.mean(steps[-200:])
    assert mean_s > 1.5 * scheduler.part.step_time.predict(StepShape(0, 1, 600))
    assert scheduler.counts.gaps[-2] == pytest.approx(2.0 * mean_s, rel=0.25)


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    driver = Driver(two_cores)
    scheduler = WithHeadgate(lambda: driver.now, tokens=2048)
    warmed(driver, scheduler)
    at = driver.now
    comes = [(at, asked("long", 3000, 4, at)), (at + 1.0, asked("short", 60, 4, at + 1.0))]
    driver.run(scheduler, comes)
    assert driver.told["short"][0] - at - 1.0 < 1.0
    assert driver.told["long"][0] - at > 8.0
    assert scheduler.counts.out == 1


def test_a_wish_for_a_deadline_goes_before_the_length_of_a_prompt() -> None:
    driver = Driver(two_cores)
    scheduler = WithHeadgate(lambda: driver.now, tokens=512, seats=1)
    comes = [
        (100.0, asked("first", 400, 20)),
        (100.1, asked("short", 60, 4, 100.1, sampling_params=wishes(priority=3))),
        (100.2, asked("long", 900, 4, 100.2, sampling_params=wishes(priority=0, ttft_ms=500))),
    ]
    driver.run(scheduler, comes)
    assert driver.told["long"][0] < driver.told["short"][0]


def test_of_equal_lanes_the_earlier_deadline_is_first() -> None:
    driver = Driver(two_cores)
    scheduler = WithHeadgate(lambda: driver.now, tokens=512, seats=1)
    comes = [
        (100.0, asked("first", 400, 20)),
        (100.1, asked("a", 60, 4, 100.1, sampling_params=wishes(ttft_ms=60_000))),
        (100.2, asked("b", 60, 4, 100.2, sampling_params=wishes(ttft_ms=8_000))),
    ]
    driver.run(scheduler, comes)
    assert driver.told["b"][0] < driver.told["a"][0]


def test_an_error_of_ours_leaves_the_step_to_vllm(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(two_cores)
    scheduler = WithHeadgate(lambda: driver.now, tokens=512)

    def broken(*_: Any) -> Any:
        raise KeyError("nothing of the sort")

    with monkeypatch.context() as patched:
        patched.setattr(scheduler.part._chooser, "choose", broken)
        driver.run(scheduler, [(100.0, asked(f"r{number}", 300, 10)) for number in range(4)])
    assert {number: len(told) for number, told in driver.told.items()} == {f"r{number}": 10 for number in range(4)}
    failures = scheduler.counts.failures
    assert failures == scheduler.hooks.failures > LOGGED
    assert sum("vLLM's own schedule" in record.message for record in caplog.records) == LOGGED
    driver.run(scheduler, [(driver.now, asked("later", 300, 10, driver.now))])
    assert len(driver.told["later"]) == 10
    assert scheduler.counts.failures == failures


@pytest.mark.parametrize("name", ["sent", "back"])
def test_an_error_after_a_step_loses_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(two_cores)
    scheduler = WithHeadgate(lambda: driver.now, tokens=512, ahead=True)

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(scheduler.part, name, broken)
    driver.run(scheduler, [(100.0, asked(f"r{number}", 300, 10)) for number in range(4)])
    assert {len(told) for told in driver.told.values()} == {10}
    assert (scheduler.max_num_running_reqs, scheduler.max_num_scheduled_tokens) == (8, 512)


def test_an_error_of_vllm_itself_is_not_swallowed_and_all_is_put_back() -> None:
    driver = Driver(two_cores)
    scheduler = WithHeadgate(lambda: driver.now, tokens=512)
    comes = [(100.0, asked("long", 3000, 4)), (100.6, asked("short", 60, 4, 100.6))]
    driver.run(scheduler, comes[:1], until=100.7)
    scheduler.add(comes[1][1])
    plan = scheduler.part.plan(scheduler, driver.now, driver.now)
    assert [one.request_id for one in plan.left_out] == ["long"]
    scheduler.part._chooser._left_out = False

    def fails() -> None:
        assert scheduler.running == []
        assert scheduler.max_num_active_reqs == 7
        raise MemoryError

    with pytest.raises(MemoryError):
        scheduler.hooks.schedule(scheduler, fails)
    assert [one.request_id for one in scheduler.running] == ["long"]
    assert (scheduler.max_num_running_reqs, scheduler.max_num_active_reqs) == (8, 8)
    assert scheduler.max_num_scheduled_tokens == 512


def test_an_abort_of_a_prompt_that_was_left_out_frees_it() -> None:
    driver = Driver(two_cores)
    scheduler = WithHeadgate(lambda: driver.now, tokens=512)
    driver.run(scheduler, [(100.0, asked("long", 3000, 4))], until=100.7)
    short = asked("short", 60, 400, driver.now)
    scheduler.add(short)
    output = scheduler.schedule()
    assert list(output.num_scheduled_tokens) == ["short"]
    assert {one.request_id for one in scheduler.running} == {"long", "short"}
    scheduler.finish("long")
    scheduler.update_from_output(output)
    driver.run(scheduler, [])
    assert short.num_tokens == 460
    assert scheduler.running == []
    assert scheduler.counts.failures == 0


def test_under_memory_pressure_the_least_urgent_makes_way_and_all_are_served() -> None:
    driver = Driver(two_cores)
    scheduler = WithHeadgate(lambda: driver.now, tokens=512, blocks=40)
    comes = [(100.0, asked(f"b{number}", 150, 60, 100.0, sampling_params=wishes(priority=3))) for number in range(3)]
    comes += [(101.0, asked(f"f{number}", 60, 60, 101.0, sampling_params=wishes(priority=0))) for number in range(2)]
    driver.run(scheduler, comes)
    assert scheduler.preemptions
    assert {len(told) for told in driver.told.values()} == {60}
    assert scheduler.counts.failures == 0
    urgent = max(driver.told[f"f{number}"][-1] for number in range(2))
    assert urgent < max(driver.told[f"b{number}"][-1] for number in range(3))


def test_a_request_that_vllm_cannot_let_in_holds_no_prompt_up() -> None:
    driver = Driver(two_cores)
    scheduler = WithHeadgate(lambda: driver.now, tokens=512, blocks=190)
    scheduler.whole = True
    huge = asked("huge", 2500, 4, 106.0, sampling_params=wishes(priority=0))
    driver.run(scheduler, [(100.0, asked("long", 3000, 4)), (106.0, huge)])
    assert len(driver.told["long"]) == len(driver.told["huge"]) == 4
    assert driver.told["long"][0] - 100.0 < 1.3 * two_cores(3000, 0) + 2.0


@pytest.mark.parametrize(("blocks", "out"), [(103, 0), (200, 1)])
def test_while_memory_is_short_no_prompt_hides_from_being_preempted(blocks: int, out: int) -> None:
    driver = Driver(two_cores)
    scheduler = WithHeadgate(lambda: driver.now, tokens=512, blocks=200)
    long = asked("long", 2000, 4)
    scheduler.add(long)
    scheduler.update_from_output(scheduler.schedule())
    long.num_computed_tokens = 1600
    scheduler.blocks = blocks
    scheduler.add(asked("short", 10, 4, sampling_params=wishes(priority=0)))
    scheduler.schedule()
    assert scheduler.counts.out == out


def test_a_prompt_that_may_not_be_cut_so_small_gets_a_whole_step() -> None:
    driver = Driver(two_cores)
    scheduler = WithHeadgate(lambda: driver.now, tokens=1024)
    image = asked("image", 1000, 4, 101.0, has_encoder_inputs=True, least=600)
    driver.run(scheduler, [(100.0, asked("s", 40, 300)), (101.0, image)], until=200.0)
    assert len(driver.told["image"]) == 4
    assert len(driver.told["s"]) == 300
    part = asked("part", 1000, 4, driver.now, least=1)
    driver.run(scheduler, [(driver.now, part)], until=driver.now + 0.5)
    part.least = 1000
    driver.run(scheduler, [(driver.now, asked("t", 40, 100, driver.now))], until=driver.now + 60.0)
    assert len(driver.told["part"]) == 4


def test_one_that_waits_for_its_grammar_is_seen_and_keeps_its_place() -> None:
    driver = Driver(two_cores)
    scheduler = WithHeadgate(lambda: driver.now, tokens=512)
    grammar = asked("g", 60, 4, 100.5, status=Status.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR)
    comes = [(100.0, asked("s", 40, 100)), (100.5, grammar), (100.6, asked("long", 900, 4, 100.6))]
    driver.run(scheduler, comes, until=101.0)
    assert "g" not in driver.told
    grammar.status = Status.WAITING
    driver.run(scheduler, [])
    assert driver.told["g"][0] < driver.told["long"][0]
    assert scheduler.counts.failures == 0


def test_a_request_whose_prefix_was_not_cached_is_lowered() -> None:
    driver = Driver(two_cores)
    scheduler = WithHeadgate(lambda: driver.now, tokens=512)
    there = asked("there", 2000, 4, sampling_params=wishes(priority=0, uncached_tokens=100), cached=1904)
    gone = asked("gone", 2000, 4, sampling_params=wishes(priority=0, uncached_tokens=100))
    driver.run(scheduler, [(100.0, there)])
    assert scheduler.counts.lowered == 0
    driver.run(scheduler, [(driver.now, gone)], until=driver.now + 2.0)
    assert scheduler.counts.lowered == 1
    known = scheduler.mirror.known("gone")
    assert known is not None
    assert known.priority == 1


def test_drafts_are_never_cut() -> None:
    driver = Driver(two_cores)
    scheduler = WithHeadgate(lambda: driver.now, tokens=512)
    scheduler.num_spec_tokens = 3
    streams = [asked(f"s{number}", 40, 50) for number in range(3)]
    driver.run(scheduler, [(100.0, one) for one in streams], until=100.8)
    for one in streams:
        one.spec_token_ids = [1, 2, 3]
    scheduler.add(asked("long", 900, 4, driver.now))
    output = scheduler.schedule()
    assert [output.num_scheduled_tokens[one.request_id] for one in streams] == [4, 4, 4]
    assert output.num_scheduled_tokens["long"] >= 8


def test_requests_that_are_gone_are_forgotten() -> None:
    driver = Driver(a_gpu)
    scheduler = WithHeadgate(lambda: driver.now, tokens=512, seats=64)
    driver.run(scheduler, [(100.0 + number / 100, asked(f"r{number}", 40, 4, 100.0)) for number in range(600)])
    assert len(scheduler.mirror) <= 64 + 2 * 64
    assert not scheduler.part._refused
