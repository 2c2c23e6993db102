"""How many replicas, and why: queue first, no flapping, least to lose, warm pool, forecast floor."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.config.scale import ScaleConfig, contradictions
from headgate.policy.scaling.demand import Signals
from headgate.policy.scaling.forecast import Forecast
from headgate.policy.scaling.lifecycle import Lifecycle
from headgate.policy.scaling.placement import Sorted, settle
from headgate.policy.scaling.scale import Activate, Decision, Drain, Park, PoolMember, PoolView, Scaler, Start

SLOTS = 10
CONFIG = ScaleConfig(min=1, max=20, forecast=False)


class Bench:
    """A pool that does as it is told, with starts that take a while."""

    def __init__(
        self, config: ScaleConfig = CONFIG, serving: int = 1, forecast: Forecast | None = None, start_s: float = 60.0
    ) -> None:
        self.scaler = Scaler(config, forecast)
        self.start_s = start_s
        self.now = 1000.0
        self.wall = 4 * 86_400.0
        self.made = 0
        self.members: dict[str, PoolMember] = {}
        self.levels: list[tuple[float, int]] = []
        self.decisions: list[Decision] = []
        for _ in range(serving):
            self.add(Lifecycle.SERVING)
        for _ in range(config.warm):
            self.add(Lifecycle.PARKED)

    def add(self, state: Lifecycle) -> None:
        self.made += 1
        name = f"r{self.made}"
        self.members[name] = PoolMember(id=name, state=state, since=self.now, slots=SLOTS)

    def count(self, *states: Lifecycle) -> int:
        return sum(member.state in states for member in self.members.values())

    def put(self, name: str, state: Lifecycle) -> None:
        self.members[name] = replace(self.members[name], state=state, since=self.now)

    def look(
        self, present: float, *, velocity: float = 0.0, p95: float | None = None, passed_s: float = 5.0
    ) -> Decision:
        """This number of requests is here; those that do not fit wait. What is left is carried out."""
        self.now += passed_s
        self.wall += passed_s
        for name, member in tuple(self.members.items()):
            if member.state is Lifecycle.STARTING and self.now - member.since >= self.start_s:
                self.put(name, Lifecycle.READY)
            elif member.state is Lifecycle.DRAINING:
                if member.then_park:
                    self.put(name, Lifecycle.PARKED)
                else:
                    del self.members[name]
        serving = self.count(Lifecycle.SERVING)
        each = min(float(SLOTS), present / serving) if serving else 0.0
        view = PoolView(
            members=tuple(
                replace(member, requests=round(each) if member.state is Lifecycle.SERVING else 0)
                for member in self.members.values()
            ),
            waiting=max(0, round(present - each * serving)),
            tokens_per_s=velocity,
            p95_ratio=p95,
            start_s=self.start_s,
        )
        decision = self.scaler.decide(view, self.now, self.wall)
        for action in decision.actions:
            if isinstance(action, Start):
                for _ in range(action.count):
                    self.add(Lifecycle.STARTING)
            elif isinstance(action, Activate):
                self.put(action.id, Lifecycle.SERVING)
            elif self.members[action.id].state is Lifecycle.READY and isinstance(action, Park):
                self.put(action.id, Lifecycle.PARKED)
            else:
                self.put(action.id, Lifecycle.DRAINING)
                self.members[action.id] = replace(self.members[action.id], then_park=isinstance(action, Park))
        self.levels.append((self.now, decision.serving))
        self.decisions.append(decision)
        return decision

    def run(self, present: float, seconds: float, velocity: float = 0.0) -> Decision:
        for _ in range(int(seconds / 5)):
            decision = self.look(present, velocity=velocity)
        return decision

    @property
    def changes(self) -> list[tuple[float, int]]:
        """(when, by how many)."""
        return [(at, after - before) for (_, before), (at, after) in pairwise(self.levels) if after != before]


# -- growing ------------------------------------------------------------------------------------------------------


def test_a_pool_at_its_target_is_left_alone() -> None:
    bench = Bench(serving=4)
    bench.run(0.62 * 4 * SLOTS, 1800)
    assert bench.changes == []
    assert bench.decisions[-1].actions == ()
    assert "4 replicas serve, as before." in bench.decisions[-1].reasons


def test_a_queue_that_stays_makes_it_grow_to_what_all_who_are_here_would_fill() -> None:
    bench = Bench(serving=2)
    bench.run(12, 60)
    assert bench.look(52).serving == 2  # it may be gone in a moment
    decision = bench.look(52)
    assert decision.serving == 8  # 52 requests over 6.5 each
    assert decision.actions == (Start(6),)
    assert "32 requests wait for 2 that serve" in " ".join(decision.reasons)


def test_what_was_asked_for_is_not_asked_for_again_while_it_starts() -> None:
    bench = Bench(serving=2, start_s=300.0)
    bench.run(40, 10)
    asked = bench.count(Lifecycle.STARTING)
    assert asked == 4
    bench.run(40, 270)
    assert bench.count(Lifecycle.STARTING) == asked
    assert bench.scaler.serving == 2 + asked


def test_more_is_not_started_within_a_minute_of_the_last_time() -> None:
    bench = Bench(serving=2)
    bench.run(30, 10)
    for _ in range(10):
        decision = bench.look(80)
        assert decision.serving == 5
    assert any("given" in reason and "to show" in reason for reason in decision.reasons)
    assert bench.look(80).serving > 5


def test_it_never_goes_past_what_there_are_machines_for() -> None:
    bench = Bench(replace(CONFIG, max=5, warm=1), serving=2)
    bench.run(500, 600)
    assert bench.scaler.serving == 5
    assert bench.count(Lifecycle.SERVING, Lifecycle.PARKED, Lifecycle.STARTING, Lifecycle.READY) == 5
    assert bench.decisions[-1].parked == 0  # the warm pool gives way


def test_velocity_sees_what_was_refused_and_so_never_shows_in_the_queue() -> None:
    blind, bench = Bench(serving=4, start_s=20.0), Bench(serving=4, start_s=20.0)
    for one, velocity in ((blind, 4000), (bench, 16_000)):
        one.run(0.62 * 4 * SLOTS, 900, velocity=4000)
        one.run(4 * SLOTS + 5, 190, velocity=velocity)
    assert blind.scaler.serving == 7
    assert bench.scaler.serving == 9  # and not 15: the rest of it has to show in what replicas have
    assert "tokens/s arrive" in " ".join(bench.decisions[-1].reasons)


def test_outstanding_tokens_count_where_the_config_says_what_fills_a_replica() -> None:
    scaler = Scaler(replace(CONFIG, tokens_per_replica=10_000))
    members = tuple(
        PoolMember(id=f"r{n}", state=Lifecycle.SERVING, since=0.0, requests=1, outstanding_tokens=13_000, slots=SLOTS)
        for n in range(2)
    )
    decision = scaler.decide(PoolView(members=members), 1.0, 0.0)
    assert decision.serving == 4  # 26 000 over 6 500 each
    assert "26000 tokens are outstanding" in " ".join(decision.reasons)


def test_replicas_that_prompts_keep_busy_are_full_however_few_of_their_slots_are_taken() -> None:
    scaler = Scaler(CONFIG)
    members = tuple(
        PoolMember(id=f"r{n}", state=Lifecycle.SERVING, since=0.0, requests=1, slots=SLOTS, use=0.9, binding="prefill")
        for n in range(4)
    )
    decision = scaler.decide(PoolView(members=members), 1.0, 0.0)
    assert decision.serving == 6  # 3.6 replicas' worth over 0.65, less the band
    assert "90% of the replicas' time for prompts is taken" in " ".join(decision.reasons)


def test_late_first_tokens_add_one_at_a_time_and_only_where_replicas_are_not_idle() -> None:
    busy, idle = Bench(serving=4, start_s=5.0), Bench(serving=4, start_s=5.0)
    for _ in range(24):
        busy.look(0.6 * 4 * SLOTS, p95=1.8)
        idle.look(0.2 * 4 * SLOTS, p95=1.8)
    assert busy.scaler.serving == 5
    assert "TTFT p95 is 1.8 times" in " ".join(reason for one in busy.decisions for reason in one.reasons)
    assert idle.scaler.serving <= 4


# -- shrinking ----------------------------------------------------------------------------------------------------


def test_fewer_only_after_five_minutes_in_which_fewer_would_have_done() -> None:
    bench = Bench(serving=8)
    bench.run(0.6 * 8 * SLOTS, 600)
    began = bench.now
    bench.run(10, 2700)
    first = bench.changes[0]
    assert first[1] < 0
    assert first[0] - began >= 300
    assert any("nothing is stopped for" in reason for one in bench.decisions for reason in one.reasons)
    assert bench.scaler.serving == 2


def test_it_goes_down_in_steps() -> None:
    bench = Bench(serving=16)
    bench.run(5, 3600)
    steps = [by for _, by in bench.changes]
    assert steps[0] == -4
    assert all(-4 <= by <= -1 for by in steps)
    times = [at for at, _ in bench.changes]
    assert all(later - earlier >= 300 for earlier, later in pairwise(times))
    assert bench.scaler.serving == 1  # min


def test_whoever_has_least_to_lose_goes_and_is_drained() -> None:
    members = [
        PoolMember(id="busy", state=Lifecycle.SERVING, since=0.0, requests=2, outstanding_tokens=9_000, slots=SLOTS),
        PoolMember(
            id="knows", state=Lifecycle.SERVING, since=0.0, requests=1, outstanding_tokens=100, cached_tokens=50_000
        ),
        PoolMember(
            id="least", state=Lifecycle.SERVING, since=0.0, requests=2, outstanding_tokens=700, cached_tokens=2_000
        ),
    ]
    actions, reasons = settle(Sorted.of(members), serving=2, parked=0, most=8, keep_s=300.0, now=1.0)
    assert actions == (Drain("least"),)
    assert reasons == ("least is drained and stopped: it has least to lose (700 tokens under way, 2000 remembered).",)


def test_of_those_that_are_alike_the_youngest_goes() -> None:
    members = [
        PoolMember(id=name, state=Lifecycle.SERVING, since=since)
        for name, since in (("a", 5.0), ("b", 9.0), ("c", 1.0))
    ]
    actions, _ = settle(Sorted.of(members), serving=2, parked=0, most=8, keep_s=0.0, now=10.0)
    assert actions == (Drain("b"),)


# -- no flapping --------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), level=st.floats(2.0, 15.0), noise=st.floats(0.0, 0.2), start_s=st.floats(1.0, 120.0))
def test_noise_around_a_level_does_not_make_it_flap(seed: int, level: float, noise: float, start_s: float) -> None:
    """Whatever the level: once it has settled, replicas are not stopped and started again and again."""
    rng = random.Random(seed)
    bench = Bench(replace(CONFIG, max=60), serving=round(level), start_s=start_s)
    mean = 0.65 * SLOTS * level
    for _ in range(900):  # an hour and a quarter
        bench.look(max(0.0, rng.gauss(mean, noise * mean)), velocity=max(0.0, rng.gauss(1, noise)) * 1000)
    settled = [by for at, by in bench.changes if at > bench.now - 3000]
    turns = sum((one > 0) != (other > 0) for one, other in pairwise(settled))
    assert turns <= 2
    assert sum(map(abs, settled)) <= 0.25 * bench.scaler.serving + 3


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    loads=st.lists(st.tuples(st.floats(0, 300), st.integers(1, 60)), min_size=1, max_size=25),
    warm=st.integers(0, 2),
    start_s=st.floats(1.0, 120.0),
)
def test_whatever_comes_cooldowns_and_bounds_are_kept(
    loads: list[tuple[float, int]], warm: int, start_s: float
) -> None:
    config = replace(CONFIG, min=2, max=12, warm=warm)
    bench = Bench(config, serving=3, start_s=start_s)
    last = dict.fromkeys(("up", "any"), float("-inf"))
    for present, looks in loads:
        for _ in range(looks):
            warm_ones = bench.count(Lifecycle.PARKED, Lifecycle.READY)
            before = bench.scaler.serving
            decision = bench.look(present)
            assert 2 <= decision.serving <= 12
            assert (
                bench.count(
                    Lifecycle.SERVING, Lifecycle.PARKED, Lifecycle.STARTING, Lifecycle.READY, Lifecycle.DRAINING
                )
                <= 12 + 1
            )
            assert decision.reasons
            assert all(reason.endswith(".") for reason in decision.reasons)
            if before > 0 and decision.serving > before:
                assert bench.now - last["up"] >= 60 or warm_ones, "grew again within a minute, with nothing parked"
                last["up"] = last["any"] = bench.now
            if before > 0 and decision.serving < before:
                assert bench.now - last["any"] >= 300
                last["any"] = bench.now


# -- the warm pool ------------------------------------------------------------------------------------------------


def started(decisions: list[Decision]) -> int:
    return sum(action.count for one in decisions for action in one.actions if isinstance(action, Start))


def test_a_burst_is_met_by_what_is_parked_at_once_and_only_the_last_of_it_is_made_good() -> None:
    bench = Bench(replace(CONFIG, warm=2), serving=3)
    bench.run(15, 300)
    before = len(bench.decisions)
    decision = bench.look(40)
    assert len([action for action in decision.actions if isinstance(action, Activate)]) == 2
    assert bench.count(Lifecycle.SERVING) == 5
    bench.run(15, 240)
    assert bench.scaler.serving == 6
    assert started(bench.decisions[before:]) == 2  # one that serves, and one to be parked instead of two
    assert bench.count(Lifecycle.PARKED) == 1
    bench.run(15, 1200)  # what was borrowed is given back
    assert bench.count(Lifecycle.SERVING) <= 3
    assert bench.count(Lifecycle.PARKED) == 2


def test_a_warm_pool_is_filled_again_if_what_came_stays() -> None:
    bench = Bench(replace(CONFIG, warm=2), serving=3)
    bench.run(15, 300)
    bench.look(40)
    bench.run(40, 900)
    assert bench.count(Lifecycle.SERVING) >= 5
    assert bench.count(Lifecycle.PARKED) == 2
    assert bench.decisions[-1].parked == 2


def test_of_one_that_is_parked_none_is_borrowed_without_being_made_good() -> None:
    bench = Bench(replace(CONFIG, warm=1), serving=3)
    bench.run(15, 300)
    before = len(bench.decisions)
    bench.look(30)
    assert started(bench.decisions[before:]) == 1


def test_the_warm_pool_does_not_wait_for_the_minute_to_be_over() -> None:
    bench = Bench(replace(CONFIG, warm=1), serving=3, start_s=10.0)
    bench.run(14, 300)
    bench.look(34)
    grown = bench.scaler.serving
    bench.run(34, 20)
    assert bench.count(Lifecycle.SERVING) == grown == 5
    assert bench.count(Lifecycle.PARKED) == 1  # it has been filled again meanwhile
    bench.look(100)
    assert bench.count(Lifecycle.SERVING) == 6  # and no more than was parked


def test_a_parked_one_is_taken_before_anybody_waits() -> None:
    bench = Bench(replace(CONFIG, warm=1), serving=4)
    bench.run(20, 300)
    decision = bench.look(37)  # of 40
    assert [type(action) for action in decision.actions] == [Activate, Start]
    assert "nearly full" in " ".join(decision.reasons)


def test_parked_ones_count_as_room_but_not_so_that_those_that_serve_run_hot() -> None:
    large, small = Bench(replace(CONFIG, warm=1), serving=10), Bench(replace(CONFIG, warm=1), serving=2)
    large.run(0.65 * SLOTS * 10, 3600)
    small.run(0.65 * SLOTS * 2, 3600)
    assert large.scaler.serving == 8
    assert small.scaler.serving == 2  # one alone would be more than full


def settled(low: float, high: float) -> tuple[int, str]:
    """How many serve after two hours that change between the two every half minute, and why."""
    bench = Bench(replace(CONFIG, max=80), serving=60)
    for half_minute in range(240):
        decision = bench.run(high if half_minute % 2 else low, 30)
    return decision.serving, " ".join(decision.reasons)


def test_bursts_are_left_more_room_than_what_comes_evenly() -> None:
    even, why_even = settled(360, 360)
    usual, _ = settled(280, 440)
    bursts, why_bursts = settled(180, 540)
    assert even < usual < bursts
    assert "at 70% that needs" in why_even
    assert "at 60% that needs" in why_bursts


@pytest.mark.parametrize("target", [0.01, 0.04, 0.99, 1.0])
def test_an_odd_target_stays_a_share(target: float) -> None:
    for low, high in ((2, 2), (0, 4)):
        bench = Bench(replace(CONFIG, utilisation_target=target), serving=2)
        for half_minute in range(80):
            decision = bench.run(high if half_minute % 2 else low, 30)
        assert 1 <= decision.serving <= CONFIG.max


def test_the_target_moves_only_once_burstiness_is_known() -> None:
    bench = Bench(replace(CONFIG, max=40), serving=20)
    assert "at 65% that needs" in " ".join(bench.run(120, 890).reasons)
    assert "at 70% that needs" in " ".join(bench.run(120, 60).reasons)


def test_one_that_goes_is_parked_if_the_warm_pool_is_short() -> None:
    members = [
        PoolMember(id="a", state=Lifecycle.SERVING, since=0.0, outstanding_tokens=10),
        PoolMember(id="b", state=Lifecycle.SERVING, since=0.0, outstanding_tokens=20),
        PoolMember(id="c", state=Lifecycle.SERVING, since=0.0, outstanding_tokens=30),
    ]
    actions, _ = settle(Sorted.of(members), serving=1, parked=1, most=8, keep_s=300.0, now=1.0)
    assert actions == (Drain("a"), Park("b"))
    # While it drains it counts as parked: nothing is started for the pool.
    members[:2] = [
        replace(members[0], state=Lifecycle.STOPPED),
        replace(members[1], state=Lifecycle.DRAINING, then_park=True),
    ]
    actions, _ = settle(Sorted.of(members), serving=1, parked=1, most=8, keep_s=300.0, now=2.0)
    assert actions == ()


def test_one_that_is_about_to_be_stopped_is_taken_back_before_anything_is_started() -> None:
    members = [
        PoolMember(id="serves", state=Lifecycle.SERVING, since=0.0),
        PoolMember(id="parked", state=Lifecycle.PARKED, since=0.0),
        PoolMember(id="stopping", state=Lifecycle.DRAINING, since=0.0),
    ]
    actions, reasons = settle(Sorted.of(members), serving=2, parked=1, most=8, keep_s=300.0, now=1.0)
    assert actions == (Activate("stopping"),)
    assert reasons == ("stopping is still there: it is taken into use at once.",)


def test_more_parked_than_asked_for_are_stopped_but_not_at_once() -> None:
    members = [PoolMember(id="serves", state=Lifecycle.SERVING, since=0.0)]
    members += [PoolMember(id=f"p{n}", state=Lifecycle.PARKED, since=100.0, cached_tokens=n) for n in range(3)]
    soon, _ = settle(Sorted.of(members), serving=1, parked=1, most=8, keep_s=300.0, now=200.0)
    later, _ = settle(Sorted.of(members), serving=1, parked=1, most=8, keep_s=300.0, now=400.0)
    assert soon == ()
    assert later == (Drain("p0"), Drain("p1"))


def test_what_failed_is_replaced_by_what_is_parked_and_another_is_started() -> None:
    members = [
        PoolMember(id="serves", state=Lifecycle.SERVING, since=0.0),
        PoolMember(id="dead", state=Lifecycle.FAILED, since=0.0),
        PoolMember(id="parked", state=Lifecycle.PARKED, since=0.0),
    ]
    actions, _ = settle(Sorted.of(members), serving=2, parked=1, most=8, keep_s=300.0, now=1.0)
    assert actions == (Activate("parked"), Start(1))


def test_while_machines_are_short_it_says_so() -> None:
    members = [PoolMember(id=f"r{n}", state=Lifecycle.DRAINING, since=0.0, then_park=True) for n in range(3)]
    actions, reasons = settle(Sorted.of(members), serving=3, parked=3, most=3, keep_s=300.0, now=1.0)
    assert {type(action) for action in actions} == {Activate}
    assert reasons[-1] == "3 are wanted, but max is 3, and so many are there."


# -- the forecast -------------------------------------------------------------------------------------------------


def office(days: int) -> Forecast:
    """Eight times as much from nine to five, every day."""
    forecast, monday = Forecast(0.5), 4 * 86_400.0 - days * 86_400.0 + 7 * 86_400.0
    for minute in range(days * 1440):
        wall = monday + 60.0 * minute
        busy = 9 * 3600 <= (wall - 60) % 86_400 < 17 * 3600
        forecast.observe(wall, 8000.0 if busy else 1000.0)
    return forecast


def test_capacity_is_up_before_the_peak() -> None:
    config = replace(CONFIG, forecast=True, tokens_per_s=1000.0)
    with_it = Bench(config, serving=1, forecast=office(7), start_s=90.0)
    without = Bench(replace(config, forecast=False), serving=1, start_s=90.0)
    for bench in (with_it, without):
        bench.wall = 4 * 86_400.0 + 7 * 86_400.0 + 8.5 * 3600
        while bench.wall % 86_400 < 9 * 3600 - 1:
            bench.look(6.0, velocity=1000.0)
    assert with_it.count(Lifecycle.SERVING) == 7  # at 70 %, as evenly as it comes, and a little more
    assert without.count(Lifecycle.SERVING) == 1
    assert "The forecast is 8000 tokens/s by Mon 09:00 UTC (7 days are known)" in " ".join(
        with_it.decisions[-1].reasons
    )
    # Neither too early: half an hour before it is not worth paying for.
    assert with_it.levels[0][1] == 1


def test_it_is_not_let_go_when_it_would_be_wanted_again_right_after() -> None:
    config = replace(CONFIG, forecast=True, tokens_per_s=1000.0)
    bench = Bench(config, serving=8, forecast=office(7), start_s=90.0)
    bench.wall = 4 * 86_400.0 + 7 * 86_400.0 + 10 * 3600
    bench.run(4.0, 3600, velocity=500.0)  # a quiet hour of a busy time
    assert bench.scaler.serving >= 6  # the day is quieter than usual, and the forecast has noticed that much
    bench.wall = 4 * 86_400.0 + 7 * 86_400.0 + 18 * 3600
    bench.run(4.0, 7200, velocity=500.0)
    assert bench.scaler.serving == 1


def test_with_little_history_it_says_so_and_the_queue_decides() -> None:
    config = replace(CONFIG, forecast=True)
    bench = Bench(config, serving=2, forecast=Forecast())
    decision = bench.look(10, velocity=1000)
    assert "There is no forecast: nothing is known of this time of day yet." in decision.reasons
    known = Bench(config, serving=2, forecast=office(7))
    known.wall = 4 * 86_400.0 + 7 * 86_400.0 + 12 * 3600
    decision = known.look(2, velocity=100)
    assert any(reason.startswith("There is no floor: ") for reason in decision.reasons)
    assert decision.serving == 2


def test_what_a_replica_carries_is_learned_and_kept_with_the_forecast() -> None:
    forecast = Forecast()
    bench = Bench(replace(CONFIG, forecast=True), serving=4, forecast=forecast, start_s=20.0)
    bench.run(0.65 * 4 * SLOTS, 1200, velocity=4000)
    assert forecast.pace.known
    assert forecast.pace.tokens_per_s == pytest.approx(1000 * 6.5 / 6, rel=0.01)  # 6 of 10 each
    assert Forecast.from_dict(forecast.to_dict()).pace.known


# -- to zero ------------------------------------------------------------------------------------------------------


def test_the_last_one_stays_unless_the_config_says_otherwise_on_purpose() -> None:
    kept, gone = Bench(serving=1), Bench(replace(CONFIG, min=0, to_zero=True, idle_s=600.0), serving=1)
    kept.run(0, 7200)
    gone.run(3, 60)
    began = gone.now
    gone.run(0, 7200)
    assert kept.scaler.serving == 1
    assert gone.scaler.serving == 0
    assert gone.count(Lifecycle.SERVING) == 0
    assert next(at for at, level in gone.levels if level == 0) - began >= 600
    decision = gone.look(1)
    assert decision.serving == 1
    assert decision.actions == (Start(1),)


def test_a_config_that_contradicts_itself_is_told() -> None:
    def problems(**values: object) -> list[str]:
        return [path for path, _ in contradictions(ScaleConfig(**values), "fleet.scale")]  # type: ignore[arg-type]

    assert problems() == []
    assert problems(min=0) == ["fleet.scale.min"]
    assert problems(min=0, to_zero=True) == []
    assert problems(min=2, to_zero=True) == ["fleet.scale.to_zero"]
    assert problems(min=4, max=3) == ["fleet.scale.max"]
    assert problems(min=2, max=3, warm=2) == ["fleet.scale.warm"]


def test_a_gateway_that_starts_anew_goes_on_with_what_is_there() -> None:
    scaler = Scaler(CONFIG)
    members = tuple(PoolMember(id=f"r{n}", state=Lifecycle.SERVING, since=0.0, slots=SLOTS) for n in range(6))
    decision = scaler.decide(PoolView(members=members), 5.0, 0.0)
    assert decision.serving == 6  # nothing is stopped by somebody who has only just looked
    assert decision.actions == ()


def test_the_same_views_give_the_same_decisions() -> None:
    def played() -> list[Decision]:
        rng, bench = random.Random(3), Bench(replace(CONFIG, warm=1), serving=2)
        for _ in range(300):
            bench.look(rng.uniform(0, 90), velocity=rng.uniform(0, 9000))
        return bench.decisions

    assert played() == played()


def test_what_the_pool_has_to_do_is_at_work_in_drains_and_in_the_queue() -> None:
    members = (
        PoolMember(id="a", state=Lifecycle.SERVING, since=0.0, slots=10, requests=4, outstanding_tokens=100),
        PoolMember(id="b", state=Lifecycle.SERVING, since=0.0, slots=10, requests=6, outstanding_tokens=200),
        PoolMember(id="goes", state=Lifecycle.DRAINING, since=0.0, slots=10, requests=3, outstanding_tokens=50),
    )
    view = PoolView(members=members, waiting=5, waiting_tokens=500, tokens_per_s=70.0, start_s=1.0)
    seen = Signals().see(view, Sorted.of(members), 1.0)
    assert (seen.present, seen.tokens, seen.velocity) == (4 + 6 + 3 + 5, 100 + 200 + 50 + 500, 70.0)
    assert seen.use == (4 + 6 + 5) / 20  # of the room of those that serve: what drains takes none of it
    assert seen.slots == 10


@pytest.mark.parametrize("coming", [False, True])
def test_a_late_first_token_asks_for_one_more_unless_one_is_coming(coming: bool) -> None:
    members = [PoolMember(id=f"r{n}", state=Lifecycle.SERVING, since=0.0, slots=10, requests=6) for n in range(2)]
    if coming:
        members.append(PoolMember(id="new", state=Lifecycle.STARTING, since=0.0, slots=10))
    view = PoolView(members=tuple(members), waiting=0, tokens_per_s=0.0, p95_ratio=2.0, start_s=60.0)
    said = " ".join(Scaler(CONFIG).decide(view, 1000.0, 0.0).reasons)
    assert ("TTFT p95 is 2.0 times" in said) != coming


# -- bursts that come back ----------------------------------------------------------------------------------------


def bursty(bench: Bench, hours: float, every_s: float, calm: float, burst: float) -> None:
    """A burst of twenty seconds every so often."""
    for look in range(int(hours * 720)):
        bench.look(burst if (look * 5) % every_s < 20 else calm)


@pytest.mark.parametrize("every_s", [120.0, 330.0, 420.0, 600.0, 900.0])
def test_with_one_parked_bursts_that_come_back_do_not_make_it_alternate(every_s: float) -> None:
    bench = Bench(replace(CONFIG, max=8, warm=1), serving=3)
    bursty(bench, 4, every_s, calm=13, burst=28)
    late = [change for change in bench.changes if change[0] > bench.now - 3.5 * 3600]
    turns = sum((one > 0) != (other > 0) for (_, one), (_, other) in pairwise(late))
    assert turns <= 2
    assert started(bench.decisions[len(bench.decisions) // 8 :]) <= 2


def test_what_was_missed_is_given_up_once_bursts_are_over_and_the_reason_is_said() -> None:
    bench = Bench(replace(CONFIG, max=8, warm=1), serving=3)
    bursty(bench, 1, 420.0, calm=13, burst=28)
    assert any("given up before and missed" in reason for one in bench.decisions for reason in one.reasons)
    high = bench.scaler.serving
    bench.run(13, 3 * 3600)
    assert bench.scaler.serving < high
    assert bench.scaler.serving <= 3


def test_to_zero_does_not_wait_for_what_was_missed() -> None:
    config = replace(CONFIG, min=0, max=8, warm=1, to_zero=True, idle_s=600.0)
    bench = Bench(config, serving=3)
    bursty(bench, 2, 420.0, calm=13, burst=28)
    bench.run(0, 600 + 5 * 310)
    assert bench.scaler.serving == 0


def test_another_config_holds_from_the_next_decision_on() -> None:
    scaler = Scaler(ScaleConfig(min=1, max=1))
    wider = ScaleConfig(min=3, max=4)
    scaler.reconfigure(wider)
    assert scaler.config is wider


def test_the_time_between_two_looks_is_told_as_it_is() -> None:
    signals, nothing = Signals(), PoolView(members=())
    there = Sorted.of(())
    assert [signals.see(nothing, there, now).passed_s for now in (10.0, 10.25, 12.0, 11.0)] == [0.0, 0.25, 1.75, 0.0]


# -- beside other pools -----------------------------------------------------------------------------------------


def shown(bench: Bench, **facts: object) -> PoolView:
    return PoolView(members=tuple(bench.members.values()), start_s=60.0, **facts)  # type: ignore[arg-type]


def test_a_pool_is_sized_for_what_it_should_hold_wherever_that_is_now() -> None:
    bench = Bench(serving=2)
    for second in range(10):
        decision = bench.scaler.decide(shown(bench, present=40.0), 1000.0 + 30 * second, bench.wall)
    assert decision.serving == 6  # 40 requests at 65 % of ten slots each
    assert any(isinstance(action, Start) for action in decision.actions)


def test_while_a_cheaper_pool_can_grow_only_warm_replicas_are_taken_into_use() -> None:
    bench = Bench(replace(CONFIG, warm=1), serving=1)
    view = shown(bench, waiting=30, present=0.0, may_start=False)
    decision = bench.scaler.decide(view, 1000.0, bench.wall)
    assert decision.serving == 2
    assert [type(action) for action in decision.actions] == [Activate, Start]
    assert decision.actions[-1] == Start(1)  # another is parked in its place


def test_the_pace_is_learned_from_what_its_own_replicas_are_sent() -> None:
    bench = Bench(serving=1)
    bench.members["r1"] = replace(bench.members["r1"], requests=6)
    for second in range(400):
        view = shown(bench, present=60.0, tokens_per_s=1000.0, carried_tokens_per_s=100.0)
        decision = bench.scaler.decide(view, 1000.0 + 2 * second, bench.wall)
    assert any("for each replica" in reason and "10" in reason for reason in decision.reasons)
