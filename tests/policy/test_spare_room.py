"""How much work that can wait is sent, and how much of it is put back."""

import random

from headgate.config.gateway import GatewayConfig
from headgate.model.event import Arrived, Probed, ReplicaJoined
from headgate.model.lane import LANES
from headgate.model.replica import Replica
from headgate.model.request import Request
from headgate.policy.compose import dispatcher_for
from headgate.policy.tenants.spare_room import PREFILL_S, QUIET_S, Spare, SpareRoom

IDLE = Spare(replicas=4, limit=32, used=0, lines=0, lines_waiting=0, others_waiting=0, prefill_s=0.0)


def test_an_idle_fleet_is_given_a_line_for_each_replica_to_wait() -> None:
    room = SpareRoom()
    assert room.look(IDLE, 0.0).send == 4
    assert room.look(IDLE._replace(lines_waiting=3), 0.0).send == 1
    full = room.look(IDLE._replace(lines_waiting=4), 0.0)
    assert (full.send, full.end) == (0, 0)
    assert "full" in full.reason


def test_nothing_is_sent_where_nothing_can_be_served() -> None:
    assert SpareRoom().look(IDLE._replace(replicas=0), 0.0).send == 0


def test_no_line_joins_prompts_that_are_not_computed_yet() -> None:
    assert SpareRoom().look(IDLE._replace(prefill_s=PREFILL_S * 1.01), 0.0).send == 0
    assert SpareRoom().look(IDLE._replace(prefill_s=PREFILL_S), 0.0).send == 4


def test_lines_make_way_for_what_waits_without_a_slot() -> None:
    room = SpareRoom()
    quiet = IDLE._replace(lines=30, used=32)
    assert room.look(quiet._replace(others_waiting=3), 1.0)[:2] == (0, 3)
    assert room.look(quiet._replace(used=31, lines=29, others_waiting=3), 1.0)[:2] == (0, 2)
    assert room.look(quiet._replace(used=3, lines=2, others_waiting=40), 1.0)[:2] == (0, 2)
    assert room.look(quiet._replace(used=20, lines=18, others_waiting=3), 1.0)[:2] == (0, 0)


def test_after_others_waited_nothing_is_sent_for_a_moment() -> None:
    room = SpareRoom()
    room.look(IDLE._replace(others_waiting=1), 1.0)
    assert room.look(IDLE, 1.0 + QUIET_S * 0.9).send == 0
    assert room.look(IDLE, 1.0 + QUIET_S * 1.1).send == 4


def test_beside_a_crowd_few_lines_run_and_the_rest_are_put_back() -> None:
    room, large = SpareRoom(), Spare(4, 1024, 0, 0, 0, 0, 0.0)
    few = large._replace(used=407, lines=400)
    assert room.look(few, 0.0)[:2] == (4, 0)
    crowd = large._replace(used=408, lines=400)
    assert room.look(crowd, 1.0)[:2] == (0, 400 - 32)
    assert room.look(crowd, 1.0).reason == "other lanes need the replicas"
    assert room.look(crowd._replace(used=39, lines=31), 1.0)[:2] == (1, 0)
    assert room.look(few, 1.0 + QUIET_S * 0.9).end == 400 - 32
    assert room.look(few, 1.0 + QUIET_S * 1.1)[:2] == (4, 0)


def test_a_replica_of_few_slots_keeps_one_line_beside_others() -> None:
    room = SpareRoom()
    assert room.look(IDLE._replace(used=9, lines=5), 0.0)[:2] == (0, 1)
    assert room.look(IDLE._replace(used=8, lines=5), 9.0)[:2] == (4, 0)


def test_replicas_whose_slots_are_all_taken_by_lines_are_full() -> None:
    assert "full" in SpareRoom().look(IDLE._replace(used=32, lines=32), 0.0).reason


# -- as a dispatcher tells it -------------------------------------------------------------------------------------


def ask(number: int, lane: str, model: str = "m") -> Request:
    return Request(
        id=f"r{number}", arrived=100.0, model=model, lane=lane, priority=LANES[lane].priority, wait_until=1000.0,
        first_token_by=1000.0, prompt_tokens=1000, max_output=10, stream=lane != "batch",
    )  # fmt: skip


def test_what_a_dispatcher_says_of_its_room() -> None:
    dispatcher = dispatcher_for(GatewayConfig(), random.Random(1))
    assert dispatcher.spare("m", "batch").replicas == 0
    for name, model in (("a", "m"), ("b", "m"), ("c", "other"), ("d", None)):
        dispatcher.on(ReplicaJoined(Replica(id=name, url=f"http://{name}", slots=4, model=model)), 0.0)
        for at in (1.0, 2.0, 3.0, 99.0):
            dispatcher.on(Probed(name, True), at)
    for number, lane in enumerate(("batch", "slow", "batch")):
        dispatcher.on(Arrived(ask(number, lane)), 100.0)
    seen = dispatcher.spare("m", "batch")
    assert (seen.limit, seen.used, seen.lines) == (4 * seen.replicas, 3, 2)
    assert (seen.lines_waiting, seen.others_waiting) == (0, 0)
    assert seen.prefill_s >= 0.0
    for number in range(10, 40):
        dispatcher.on(Arrived(ask(number, "batch" if number % 2 else "slow")), 100.0)
    full = dispatcher.spare("m", "batch")
    assert full.others_waiting > 0
    assert full.lines_waiting > 0
    assert full.prefill_s > 0.0
