"""A loud tenant or a low lane leaves the last of the room to those who are known to come."""

import dataclasses
import heapq
import random
from collections import Counter
from collections.abc import Iterator
from itertools import count
from math import inf

import pytest

from headgate.model.event import Arrived, Command, Dispatch, Ended, FirstToken, Probed, Refuse, ReplicaJoined, Tick
from headgate.model.lane import LANES, Lane
from headgate.model.outcome import Outcome
from headgate.model.replica import Replica
from headgate.model.request import Request
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.dispatch.passage import ModelQueue
from headgate.policy.replicas.health import Health
from headgate.policy.tenants.limits import TenantLimits
from headgate.policy.tenants.standing_room import (
    ENOUGH,
    LANE_MEMORY_S,
    MOST_TENANTS,
    NO_TENANTS,
    TENANT_MEMORY_S,
    Comers,
    NamedTenants,
    Turnover,
    asked_for,
    for_tenants,
    most_kept,
)
from tests.policy.driven import settings_of

VIP = Lane(name="vip", priority=1, ttft_target_s=0.5, gap_target_s=0.2, wait_bound_s=0.4, weight=4, reserve=0.25)
BOTH = NamedTenants({"loud": 1.0, "quiet": 1.0}, {})
numbers = count()


class Scene:
    """A dispatcher in virtual time, with one replica that takes as long for each request as it is told."""

    def __init__(
        self, slots: int, expected: NamedTenants = NO_TENANTS, lanes: dict[str, Lane] = LANES, **tenants: TenantLimits
    ) -> None:
        self.lanes = lanes
        self.made = Dispatcher(settings_of(lanes, tenants, expected=expected), Health(), random.Random(1))
        self.made.on(ReplicaJoined(Replica(id="a", url="http://a", slots=slots)), 0.0)
        self.made.on(Probed("a", ok=True), 0.0)
        self.now = 0.0
        self.takes: dict[str, float] = {}
        self.running: list[tuple[float, str]] = []
        self.served: list[str] = []
        self.refused: dict[str, Refuse] = {}
        self.waited_s: dict[str, float] = {}
        self.arrived: dict[str, float] = {}

    def send(self, tenant: str, takes_s: float, lane: str = "fast") -> str:
        """Gives its id."""
        promise, name = self.lanes[lane], f"{tenant}-{next(numbers)}"
        self.takes[name], self.arrived[name] = takes_s, self.now
        request = Request(
            id=name,
            arrived=self.now,
            model="m",
            lane=lane,
            priority=promise.priority,
            tenant=tenant,
            prompt_tokens=10,
            max_output=max(1, int(takes_s / 0.035)),
            wait_until=self.now + promise.wait_bound_s,
            first_token_by=self.now + promise.ttft_target_s,
        )
        self._obey(self.made.on(Arrived(request), self.now))
        return name

    def _obey(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Dispatch):
                name = command.request_id
                self.waited_s[name] = self.now - self.arrived[name]
                heapq.heappush(self.running, (self.now + self.takes[name], name))
                self._obey(self.made.on(FirstToken(name), self.now))
            elif isinstance(command, Refuse):
                self.refused[command.request_id] = command

    def until(self, moment: float) -> None:
        while True:
            due = min(self.made.wake_at, self.running[0][0] if self.running else moment)
            if due >= moment:
                break
            self.now = max(self.now, due)
            if self.running and self.running[0][0] <= self.now:
                _, name = heapq.heappop(self.running)
                self.served.append(name)
                self._obey(self.made.on(Ended(name, Outcome.COMPLETED, (10, 10)), self.now))
            else:
                self._obey(self.made.on(Tick(), self.now))
        self.now = moment

    def of(self, tenant: str, names: object) -> int:
        return sum(name.startswith(f"{tenant}-") for name in names)  # type: ignore[attr-defined]

    def at_work(self, tenant: str) -> int:
        return self.of(tenant, [name for _, name in self.running])


def flood(scene: Scene, seconds: float, quiet_lane: str = "fast", loud_lane: str = "fast") -> list[str]:
    """The loud tenant offers four times what fits, ten seconds each; from 15 s on the quiet one a tenth of a second
    each second. Gives the quiet one's requests."""
    quiet, moment, slots = [], 0.0, 8
    while moment < seconds:
        scene.until(moment)
        for _ in range(slots // 2):
            scene.send("loud", 10.0, loud_lane)
        if moment >= 15.0:
            quiet.append(scene.send("quiet", 0.1, quiet_lane))
        moment += 1.0
    scene.until(seconds + 1.0)
    return quiet


def test_a_quiet_tenant_is_served_at_once_beside_one_that_fills_the_room() -> None:
    scene = Scene(8, BOTH)
    quiet = flood(scene, 60.0)
    assert [name for name in quiet if name in scene.refused] == []
    assert max(scene.waited_s[name] for name in quiet) == 0.0
    assert scene.at_work("loud") >= 6


def test_a_tenant_that_was_seen_an_hour_ago_is_known_to_come_and_one_seen_before_that_is_not() -> None:
    scene = Scene(8)
    scene.send("quiet", 0.1)
    scene.until(1.0)
    for _ in range(20):
        scene.send("loud", 10.0)
    assert scene.at_work("loud") == 7
    scene.until(TENANT_MEMORY_S + 100.0)
    for _ in range(20):
        scene.send("loud", 10.0)
    assert scene.at_work("loud") == 8


def test_a_lone_tenant_in_a_lone_lane_loses_nothing() -> None:
    scene = Scene(8, NamedTenants({"loud": 1.0}, {}))
    for _ in range(20):
        scene.send("loud", 10.0)
    assert scene.at_work("loud") == 8


def test_two_tenants_that_both_have_more_than_enough_to_do_share_all_of_the_room() -> None:
    scene = Scene(8, BOTH)
    for _ in range(40):
        scene.send("loud", 5.0)
        scene.send("quiet", 5.0)
        scene.until(scene.now + 0.2)
    assert (scene.at_work("loud"), scene.at_work("quiet")) == (4, 4)


def test_shares_follow_weights() -> None:
    comers, expected = Comers(), NamedTenants({"loud": 3.0}, {})
    comers.come("quiet", 1.0, expected, 0.0)
    comers.come("loud", 3.0, expected, 0.0)
    assert comers.share("loud", 3.0, expected) == pytest.approx(0.75)
    assert comers.share("quiet", 1.0, expected) == pytest.approx(0.25)
    assert comers.share("new", 1.0, expected) == pytest.approx(0.2)


def test_a_lane_finds_its_reserve_beside_long_generations_of_another_from_its_first_request_on() -> None:
    scene = Scene(8, lanes={**LANES, "vip": VIP})
    quiet = flood(scene, 40.0, quiet_lane="vip")
    assert [name for name in quiet if name in scene.refused] == []
    assert scene.at_work("loud") >= 6


def test_a_higher_lane_that_was_used_within_a_day_finds_a_slot_beside_a_low_lanes_flood() -> None:
    scene = Scene(8)
    scene.send("anonymous", 0.1)
    scene.until(LANE_MEMORY_S / 2)
    for _ in range(20):
        scene.send("anonymous", 60.0, "slow")
        scene.until(scene.now + 0.01)
    first = scene.send("anonymous", 0.1)
    assert scene.waited_s.get(first) == 0.0


def test_a_shipped_lane_that_nobody_uses_costs_nothing() -> None:
    scene = Scene(8)
    for _ in range(20):
        scene.send("anonymous", 60.0, "slow")
        scene.until(scene.now + 0.01)
    assert scene.at_work("anonymous") == 8
    assert not asked_for(LANES["fast"])
    assert asked_for(dataclasses.replace(LANES["fast"], reserve=0.5))
    assert asked_for(VIP)


def test_a_reserve_of_less_than_a_slot_keeps_none_free() -> None:
    scene = Scene(8, lanes={**LANES, "vip": dataclasses.replace(VIP, reserve=0.1)})
    for _ in range(20):
        scene.send("anonymous", 60.0)
    assert scene.at_work("anonymous") == 8


def test_where_slots_come_back_quickly_none_has_to_stay_free() -> None:
    scene = Scene(8, BOTH)
    for _ in range(400):
        scene.send("loud", 0.05)
        scene.send("loud", 0.05)
        scene.until(scene.now + 0.01)
    for _ in range(8):
        scene.send("loud", 0.05)
    assert scene.at_work("loud") == 8


def test_small_pools_keep_none_and_large_ones_two() -> None:
    assert [most_kept(room) for room in (1, 3, 4, 8, 15, 16, 64, 1000)] == [0, 0, 1, 1, 1, 2, 2, 2]
    assert [for_tenants(room) for room in (8, 31, 32)] == [1, 1, 2]
    scene = Scene(2, BOTH)
    for _ in range(4):
        scene.send("loud", 10.0)
    assert scene.at_work("loud") == 2


def test_a_tenant_below_its_share_waits_for_the_next_slot_whatever_the_rate_of_those_above_theirs() -> None:
    scene = Scene(8, BOTH)
    for _ in range(20):
        scene.send("loud", 10.0)
    three = [scene.send("quiet", 0.1) for _ in range(3)]
    scene.until(scene.now + 1.0)
    assert [name for name in three if name in scene.refused] == []
    assert scene.waited_s[three[2]] == pytest.approx(0.2)


def test_who_has_come_is_remembered_within_bounds() -> None:
    comers = Comers()
    for number in range(2 * MOST_TENANTS):
        comers.come(f"t{number}", 1.0, NO_TENANTS, float(number) / 1000)
    assert comers.share("t0", 1.0, NO_TENANTS) == pytest.approx(1 / (MOST_TENANTS + 1))
    last = f"t{2 * MOST_TENANTS - 1}"
    for moment in (10.0, 100.0, 101.0):
        comers.come(last, 1.0, NO_TENANTS, moment)
    comers.come(last, 1.0, NO_TENANTS, TENANT_MEMORY_S + 50.0)
    assert not comers.others(last, NO_TENANTS)
    assert comers.share(last, 1.0, NO_TENANTS) == pytest.approx(1.0)


def test_how_often_slots_come_back_is_learned_and_guessed_before() -> None:
    turnover = Turnover()
    assert turnover.found_every_s(8, 0.0) == inf
    assert turnover.held_s(4.0, 0.0) == 4.0
    turnover.sent(1.0)
    turnover.sent(2.0)
    assert turnover.held_s(4.0, 2.0) == 4.0
    assert turnover.held_s(4.0, 11.0) == pytest.approx(20.0)  # twice as long as the first has been there
    for _ in range(500):
        turnover.ended(0.1, 20.0)
        turnover.ended(10.0, 20.0)
    assert turnover.held_s(4.0, 20.0) == pytest.approx(5.05, rel=0.1)
    assert turnover.found_every_s(8, 20.0) == pytest.approx(9.9 / 8, rel=0.1)  # an arrival meets the long ones
    assert turnover.found_every_s(8, 50.0) == pytest.approx(30.0)


def test_how_quickly_tenants_give_slots_back_is_remembered_within_bounds() -> None:
    pool = ModelQueue(None)
    for number in range(MOST_TENANTS + 1):
        for _ in range(ENOUGH):
            pool.ended(f"t{number}", 0.001, 1.0)
    assert len(pool.turnovers) == MOST_TENANTS
    assert not pool.quick("t0", 0.4, 1.0)
    assert pool.quick("t1", 0.4, 1.0)


# -- concurrency -------------------------------------------------------------------------------------------------


def test_a_tenant_keeps_to_its_concurrency_and_nobody_waits_behind_what_it_has_waiting() -> None:
    scene = Scene(8, NamedTenants({}, {"loud": 2}))
    loud = [scene.send("loud", 0.3) for _ in range(3)]
    other = scene.send("other", 0.1)
    assert scene.at_work("loud") == 2
    assert scene.waited_s[other] == 0.0
    scene.until(0.35)
    assert scene.waited_s[loud[2]] == pytest.approx(0.3)


def test_beyond_its_concurrency_a_tenants_requests_get_429_when_they_may_wait_no_longer() -> None:
    scene = Scene(8, NamedTenants({}, {"loud": 1}))
    scene.send("loud", 5.0)
    late = scene.send("loud", 5.0)
    scene.until(1.0)
    assert scene.refused[late].outcome is Outcome.OVER_LIMIT
    assert "1 requests at work, as many as it may" in scene.refused[late].message


def test_a_tenants_concurrency_can_change_while_it_waits() -> None:
    scene = Scene(8, NamedTenants({}, {"loud": 1}))
    scene.send("loud", 5.0, "batch")
    late = scene.send("loud", 5.0, "batch")
    scene.made.reconfigure(settings_of(expected=NamedTenants({}, {"loud": 2})))
    scene._obey(scene.made.on(Tick(), scene.now))
    assert late in scene.waited_s


def test_of_many_tenants_at_their_caps_none_is_in_the_way_of_one_that_is_not() -> None:
    scene = Scene(64, NamedTenants({}, {f"t{number}": 1 for number in range(20)}))
    for number in range(20):
        for _ in range(3):
            scene.send(f"t{number}", 5.0, "batch")
    assert len(scene.running) == 20
    assert scene.waited_s[scene.send("other", 1.0, "batch")] == 0.0


# -- a full queue, and when to come back -----------------------------------------------------------------------


def test_a_tenant_that_fills_the_queue_makes_way_for_one_with_less_waiting() -> None:
    lanes = {**LANES, "batch": dataclasses.replace(LANES["batch"], queue_limit=10)}
    scene = Scene(1, lanes=lanes)
    loud = [scene.send("loud", 50.0, "batch") for _ in range(12)]
    assert {name: scene.refused[name].outcome for name in scene.refused} == {loud[11]: Outcome.LANE_FULL}
    quiet = scene.send("quiet", 1.0, "batch")
    assert quiet not in scene.refused
    assert [name in scene.refused for name in (loud[10], loud[9])] == [True, False]
    assert len([name for name in loud if name in scene.refused]) == 2


def clients(scene: Scene, number: int, takes_s: float, lane: str) -> Counter[str]:
    """All at once, with the official client's habits: two retries, each when it is told to."""
    came: Counter[str] = Counter()
    due: list[tuple[float, int, int]] = [(0.0, client, 0) for client in range(number)]
    names: dict[str, tuple[int, int]] = {}

    def refusals() -> Iterator[tuple[float, int, int]]:
        for name in [name for name in scene.refused if name in names]:
            client, tries = names.pop(name)
            after = scene.refused[name].retry_after_s
            assert after is not None
            if tries < 2:
                yield scene.now + after, client, tries + 1
            else:
                came["gave up"] += 1

    while due or names:
        moment, client, tries = heapq.heappop(due) if due else (scene.now + 1.0, -1, 0)
        while scene.now < moment:
            scene.until(min(moment, scene.now + 0.05))
            for again in refusals():
                heapq.heappush(due, again)
        if client >= 0:
            names[scene.send("anonymous", takes_s, lane)] = (client, tries)
        for name in [name for name in names if name in scene.served]:
            del names[name]
            came["served"] += 1
    return came


@pytest.mark.parametrize("takes_s", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("lane", ["fast", "slow"])
def test_default_clients_succeed_where_the_backlog_drains_in_time(slots: int, takes_s: float, lane: str) -> None:
    assert clients(Scene(slots), 6, takes_s, lane) == {"served": 6}


def test_a_refusal_says_no_less_than_the_forecast_that_refused() -> None:
    scene = Scene(1)
    for _ in range(40):
        scene.send("anonymous", 1.0, "slow")
        scene.until(scene.now + 0.8)
    names = [scene.send("anonymous", 1.0, "slow") for _ in range(8)]
    said = [scene.refused[name] for name in names if name in scene.refused]
    assert {refusal.outcome for refusal in said} == {Outcome.WOULD_WAIT_TOO_LONG}
    for refusal in said:
        assert refusal.retry_after_s is not None
        assert refusal.retry_after_s >= float(refusal.message.split()[3])
    times = [refusal.retry_after_s for refusal in said if refusal.retry_after_s is not None]
    assert times == sorted(times)
