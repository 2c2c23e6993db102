"""What several choices of one request cost: a slot each, n × max_tokens, and the wait until a replica has that
number free."""

import random
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from headgate.config.gateway import RoutingConfig
from headgate.config.hedge import HedgeConfig
from headgate.model.event import (
    Arrived,
    AttemptFailed,
    Command,
    Dispatch,
    Ended,
    FirstToken,
    Probed,
    Refuse,
    ReplicaJoined,
    Tick,
)
from headgate.model.lane import LANES, Lane
from headgate.model.outcome import Outcome
from headgate.model.replica import Load, Replica
from headgate.model.request import Request
from headgate.model.tier import TIERS, Tier
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.dispatch.hedge import Hedger
from headgate.policy.dispatch.queues import MOST_MODEL_QUEUES
from headgate.policy.replicas.health import Health
from headgate.policy.replicas.index import RouteIndex
from headgate.policy.tenants.limits import TenantLimits
from headgate.policy.tenants.standing_room import NO_TENANTS, NamedTenants
from tests.policy.driven import settings_of
from tests.policy.indexed import enter

numbers = count()


class Scene:
    """A dispatcher, the time, and what is at which replica."""

    def __init__(
        self,
        *slots: int,
        expected: NamedTenants = NO_TENANTS,
        lanes: dict[str, Lane] = LANES,
        tiers: dict[str, Tier] = TIERS,
        tenants: dict[str, TenantLimits] | None = None,
        hedger: Hedger | None = None,
    ) -> None:
        self.made = Dispatcher(
            settings_of(dict(lanes), tenants, RoutingConfig(exploration=0.0), tiers, expected),
            Health(),
            random.Random(1),
            hedger=hedger,
        )
        self.now = 0.0
        self.at: dict[str, str] = {}
        self.refused: dict[str, Refuse] = {}
        for name, size in zip("abcdefgh", slots, strict=False):
            self.made.on(ReplicaJoined(Replica(id=name, url=f"http://{name}", slots=size)), 0.0)
            self.made.on(Probed(name, ok=True, deep=True), 0.0)

    def hear(self, event: Any) -> list[Command]:
        commands = self.made.on(event, self.now)
        for command in commands:
            if isinstance(command, Refuse):
                self.refused[command.request_id] = command
            elif isinstance(command, Dispatch):
                self.at[command.request_id] = command.replica_id
        return commands

    def send(self, choices: int = 1, lane: str = "slow", **more: Any) -> str:
        name, promise = f"q{next(numbers)}", self.made.lanes[lane]
        more = {"max_output": 10 * choices, "prompt_tokens": 10, "model": "m", **more}
        self.hear(
            Arrived(
                Request(
                    id=name, arrived=self.now, lane=lane, priority=promise.priority, choices=choices,
                    wait_until=self.now + promise.wait_bound_s, first_token_by=self.now + promise.ttft_target_s, **more,
                )
            )
        )  # fmt: skip
        return name

    def end(self, name: str, usage: tuple[int, int] = (10, 10)) -> None:
        del self.at[name]
        self.hear(Ended(name, Outcome.COMPLETED, usage))

    def room(self, replica: str = "a") -> int:
        return self.made.index.loads[replica].requests


# -- slots ----------------------------------------------------------------------------------------------------


def test_each_choice_takes_a_slot_and_gives_it_back() -> None:
    scene = Scene(8)
    wide = scene.send(3)
    assert scene.room() == 3
    assert scene.made.running("slow") == 3
    scene.hear(FirstToken(wide))
    scene.end(wide)
    assert (scene.room(), scene.made.running("slow")) == (0, 0)
    load = scene.made.index.loads["a"]
    assert (load.prefill_tokens, load.decode_tokens) == (0, 0)


def test_more_choices_than_a_replica_has_slots_take_all_of_it_and_no_more() -> None:
    scene = Scene(4)
    wide = scene.send(100)
    assert scene.room() == 4
    other = scene.send()
    assert other not in scene.at
    scene.end(wide)
    assert scene.room() == 1
    assert other in scene.at


def test_it_waits_until_one_replica_has_a_slot_for_each() -> None:
    scene = Scene(4)
    first, second = scene.send(), scene.send()
    wide = scene.send(4)
    assert wide not in scene.at
    scene.end(first)
    assert wide not in scene.at
    scene.end(second)
    assert scene.at[wide] == "a"
    assert scene.room() == 4


def test_slots_that_come_back_are_kept_for_it_and_others_go_elsewhere() -> None:
    scene = Scene(2, 2)
    running = [scene.send() for _ in range(4)]
    wide, late = scene.send(2), scene.send()
    assert late not in scene.at
    where = scene.at[running[0]]
    scene.end(running[0])
    assert not {wide, late} & set(scene.at)  # its slot is kept: one more, and the two are there
    elsewhere = next(name for name in running[1:] if scene.at[name] != where)
    beside = next(name for name in running[1:] if scene.at[name] == where)
    scene.end(elsewhere)
    assert late in scene.at
    scene.end(beside)
    assert scene.at[wide] == where


def test_free_slots_of_two_replicas_are_not_those_of_one() -> None:
    scene = Scene(2, 2)
    running = [scene.send() for _ in range(4)]
    first = running[0]
    other = next(name for name in running if scene.at[name] != scene.at[first])
    beside = next(name for name in running[1:] if scene.at[name] == scene.at[first])
    where = scene.at[first]
    scene.end(first)
    scene.end(other)
    assert scene.room("a") == scene.room("b") == 1
    wide = scene.send(2)
    assert wide not in scene.at
    scene.end(beside)
    assert scene.at[wide] == where


def test_a_lane_that_goes_before_does_not_wait_for_it() -> None:
    scene = Scene(2)
    running = [scene.send(), scene.send()]
    wide, urgent = scene.send(2), scene.send(lane="fast")
    scene.end(running[0])
    assert urgent in scene.at
    assert wide not in scene.at


def test_of_two_that_wait_for_slots_the_more_urgent_is_served_first() -> None:
    scene = Scene(2)
    running = [scene.send(), scene.send()]
    slow, fast = scene.send(2, "slow"), scene.send(2, "fast")
    also = scene.send(2, "fast")
    for name in running:
        scene.end(name)
    assert fast in scene.at
    assert not {slow, also} & set(scene.at)
    scene.end(fast)
    assert also in scene.at


def test_nothing_is_kept_for_a_tenant_that_has_its_share_while_others_come() -> None:
    scene = Scene(4, expected=NamedTenants({"loud": 1.0, "quiet": 1.0}, {}))
    held = [
        scene.send(tenant="loud"),
        scene.send(tenant="loud"),
        scene.send(tenant="quiet"),
        scene.send(tenant="quiet"),
    ]
    wide = scene.send(4, tenant="loud")
    quiet = scene.send(tenant="quiet")
    scene.end(held[2])
    assert quiet in scene.at
    assert wide not in scene.at


def test_it_is_refused_when_it_has_waited_as_long_as_its_lane_allows() -> None:
    scene = Scene(2)
    scene.send()
    wide = scene.send(2)
    scene.now = LANES["slow"].wait_bound_s
    scene.hear(Tick())
    assert scene.refused[wide].outcome is Outcome.WAITED_TOO_LONG
    assert scene.made.model_queues[None].wide == 0
    leaves = scene.send(2)
    scene.hear(Ended(leaves, Outcome.CANCELLED))
    assert scene.made.model_queues[None].wide == 0


def test_a_tenants_concurrency_counts_choices() -> None:
    scene = Scene(8, expected=NamedTenants({"t": 1.0}, {"t": 4}))
    first = scene.send(3, tenant="t")
    second = scene.send(2, tenant="t")
    assert (first in scene.at, second in scene.at) == (True, False)
    third = scene.send(1, tenant="t")
    assert third in scene.at
    scene.end(third)
    scene.end(first)
    assert second in scene.at
    scene.end(second)
    assert scene.send(8, tenant="t") in scene.at  # more than it may ever have: alone
    late = scene.send(1, tenant="t")
    scene.now = 5.0
    scene.hear(Tick())
    assert scene.refused[late].outcome is Outcome.OVER_LIMIT


def test_of_a_tenant_at_its_cap_nothing_is_kept() -> None:
    scene = Scene(4, expected=NamedTenants({}, {"t": 4}))
    first = scene.send(1, tenant="t")
    wide = scene.send(4, tenant="t")
    other = scene.send(1, tenant="u")
    assert wide not in scene.at
    assert other in scene.at
    scene.end(first)
    assert wide not in scene.at
    scene.end(other)
    assert wide in scene.at


def test_a_lanes_concurrency_counts_choices() -> None:
    lanes = {**LANES, "slow": replace(LANES["slow"], concurrency=4)}
    scene = Scene(16, lanes=lanes)
    scene.send(3)
    wide, one = scene.send(2), scene.send()
    assert (wide in scene.at, one in scene.at) == (False, True)


def test_what_other_tiers_have_in_reserve_is_left_free() -> None:
    tiers = {"premium": Tier(name="premium", weight=4, reserve=0.5), "free": Tier(name="free", weight=1)}
    scene = Scene(8, tiers=tiers)
    scene.send(1, tier="free")
    assert scene.send(4, tier="free") not in scene.at
    assert scene.send(3, tier="free") not in scene.at  # behind the other
    assert scene.send(1, tier="free") in scene.at


def test_the_last_slot_stays_free_for_others_that_come() -> None:
    scene = Scene(8, expected=NamedTenants({"loud": 1.0, "quiet": 1.0}, {}))
    scene.send(4, tenant="loud")
    assert scene.send(4, tenant="loud") not in scene.at
    assert scene.send(tenant="quiet") in scene.at


def test_where_nobody_is_usable_it_waits_as_any_other() -> None:
    scene = Scene()
    wide = scene.send(2)
    scene.made.on(ReplicaJoined(Replica(id="a", url="http://a", slots=2)), 0.0)
    assert isinstance(scene.hear(Probed("a", ok=True))[0], Dispatch)
    assert scene.at[wide] == "a"


def test_nobody_with_a_free_slot_is_nobody_to_keep_room_at() -> None:
    fleet = RouteIndex({})
    for name, requests in (("a", 4), ("b", 3), ("c", 1)):
        enter(fleet, Load(Replica(id=name, url="http://x"), limit=4.0, requests=requests))
    assert fleet.roomiest("m", "fast", 4, frozenset()) == "c"
    assert fleet.roomiest("m", "fast", 4, frozenset("c")) == "b"
    assert fleet.roomiest("m", "fast", 4, frozenset("bc")) is None
    assert fleet.roomiest("m", "fast", 3, frozenset()) is None


# -- tokens ---------------------------------------------------------------------------------------------------


def test_all_its_choices_are_reserved_and_what_they_said_is_settled() -> None:
    scene = Scene(8, tenants={"t": TenantLimits(tokens_per_min=100)})
    wide = scene.send(4, tenant="t", max_output=80, prompt_tokens=10)
    assert wide in scene.at
    other = scene.send(1, tenant="t", max_output=1, prompt_tokens=10)
    assert scene.refused[other].outcome is Outcome.OVER_LIMIT
    scene.end(wide, (10, 8))
    assert scene.send(1, tenant="t", max_output=70, prompt_tokens=10) in scene.at


def counter(scene: Scene, tenant: str) -> float:
    queue = scene.made.model_queues[None].lanes["slow", "free", True].queue
    queue.push(
        Request(
            id="p", arrived=0.0, model="m", lane="slow", priority=1, wait_until=9.0, first_token_by=9.0, tenant=tenant
        )
    )
    found = queue._tenants[tenant].counter
    queue.remove("p")
    return found


def test_its_tenants_turn_is_charged_for_all_but_one_choice_at_once_and_for_what_they_said_at_the_end() -> None:
    scene = Scene(8)
    wide = scene.send(4, tenant="t", prompt_tokens=10, max_output=400)
    assert counter(scene, "t") == 310
    scene.end(wide, (10, 200))
    assert counter(scene, "t") == 210
    for outcome in (Outcome.CANCELLED, Outcome.REPLICA_FAILED):
        lost = scene.send(4, tenant="t", prompt_tokens=10, max_output=400)
        scene.hear(Ended(lost, outcome))
    assert counter(scene, "t") == 230  # nobody knows of more than that their prompts were sent
    waits = Scene(4)
    held = waits.send(4, tenant="u")
    gone = waits.send(4, tenant="t")
    waits.hear(Ended(gone, Outcome.CANCELLED))
    assert counter(waits, "t") == counter(waits, "nobody")
    waits.end(held)


def test_what_was_charged_for_a_request_that_nobody_could_serve_is_given_back() -> None:
    scene = Scene(8)
    wide = scene.send(4, tenant="t", prompt_tokens=10, max_output=400)
    for _ in range(3):
        if wide in scene.at and wide not in scene.refused:
            scene.hear(AttemptFailed(wide, "a", Outcome.REPLICA_FAILED))
    assert wide in scene.refused
    assert counter(scene, "t") == 10


def test_a_replicas_pace_is_that_of_one_choice() -> None:
    paces = []
    for choices in (1, 4):
        scene = Scene(8)
        name = scene.send(choices)
        scene.hear(FirstToken(name))
        scene.now = 1.0
        scene.end(name, (10, 101 * choices))
        paces.append(scene.made.index.loads["a"].tpot_s)
        name = scene.send(choices, stream=False)
        scene.now = 3.0
        scene.end(name, (10, 100 * choices))
        assert scene.made.index.loads["a"].answer_token_s == pytest.approx(0.02)
    assert paces[0] == pytest.approx(paces[1])


def test_what_each_is_expected_to_say() -> None:
    facts: dict[str, Any] = {"id": "q", "arrived": 0.0, "model": "m", "lane": "slow", "priority": 1, "wait_until": 1.0}
    assert Request(**facts, first_token_by=1.0, max_output=80, choices=4).output_each == 20
    assert Request(**facts, first_token_by=1.0, max_output=3, choices=4).output_each == 1
    assert Request(**facts, first_token_by=1.0, max_output=80).output_each == 80


def test_it_is_not_sent_to_a_second_replica() -> None:
    hedger = Hedger(HedgeConfig(enabled=True, least_samples=20, least_s=0.0, share=1.0))
    scene = Scene(8, 8, hedger=hedger)
    for _ in range(30):
        name = scene.send(lane="fast")
        scene.now += 0.01
        scene.hear(FirstToken(name))
        scene.end(name)
    scene.send(2, "fast")
    assert hedger.wake_at == float("inf")
    scene.send(1, "fast")
    assert hedger.wake_at < float("inf")


# -- names ----------------------------------------------------------------------------------------------------


def test_pools_of_names_that_nobody_asks_for_any_more_are_forgotten() -> None:
    scene = Scene()
    names = [f"m{number}" for number in range(3 * MOST_MODEL_QUEUES)]
    scene.made.on(ReplicaJoined(Replica(id="a", url="http://a", slots=64, models=frozenset(names))), 0.0)
    scene.made.on(Probed("a", ok=True, deep=True), 0.0)
    kept = scene.send(model=names[0])
    for name in names[1:]:
        scene.end(scene.send(model=name))
        assert len(scene.made.model_queues) <= MOST_MODEL_QUEUES
    assert names[0] in scene.made.model_queues  # it has one running
    scene.end(kept)
    assert scene.made.running("slow") == 0


def test_names_with_requests_are_kept_however_many() -> None:
    scene = Scene()
    names = [f"m{number}" for number in range(MOST_MODEL_QUEUES + 8)]
    scene.made.on(ReplicaJoined(Replica(id="a", url="http://a", slots=200, models=frozenset(names))), 0.0)
    scene.made.on(Probed("a", ok=True, deep=True), 0.0)
    asked = [scene.send(model=name) for name in names]
    assert len(scene.made.model_queues) == len(names)
    for name in asked:
        scene.end(name)
    assert scene.room() == 0
