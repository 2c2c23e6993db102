"""Under overload a request waits in a lower lane before it is refused, if its lane or its client wants that."""

import random
from dataclasses import replace
from typing import Any

import pytest

from headgate.config.gateway import GatewayConfig, Tenant
from headgate.model.errors import InvalidRequest
from headgate.model.event import Arrived, AttemptFailed, Dispatch, Ended, FirstToken, Refuse, ReplicaJoined, Tick
from headgate.model.lane import LANES, Lane
from headgate.model.outcome import Outcome
from headgate.model.replica import Replica
from headgate.model.request import Request
from headgate.policy.compose import expected, intake_for
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.replicas.health import Health
from headgate.policy.tenants.fair import FairQueue
from tests.policy.driven import settings_of
from tests.policy.test_dispatcher import request

STRICT = {name: replace(lane, when_late="refuse") for name, lane in LANES.items()}


def lanes(*relegating: str, **changes: dict[str, Any]) -> dict[str, Lane]:
    made = {
        name: replace(lane, when_late="relegate" if name in relegating else "refuse") for name, lane in STRICT.items()
    }
    return {name: replace(lane, **changes.get(name, {})) for name, lane in made.items()}


def busy(of: dict[str, Lane], *replicas: Replica) -> Dispatcher:
    """A dispatcher whose every slot is taken by a request that does not end."""
    made = Dispatcher(replace(settings_of(), lanes=of), Health(), random.Random(1))
    for replica in replicas or (Replica(id="a", url="http://x", slots=1),):
        made.on(ReplicaJoined(replica), 0.0)
        made.book.probed(replica.id, True, False, 0.0)
        made.on(Arrived(request("fast")), 0.0)
    assert all(load.room == 0 for load in made.index.loads.values())
    return made


def late(made: Dispatcher, one: Request, at: float = 2.0) -> list[Any]:
    """What becomes of a request that has waited all that its lane allows."""
    made.on(Arrived(one), one.arrived)
    return made.on(Tick(), one.arrived + at)


def test_a_lane_that_refuses_refuses_and_one_that_relegates_waits_in_the_next() -> None:
    one = request("slow", at=1.0)
    (refused,) = late(busy(lanes()), one)
    assert isinstance(refused, Refuse)
    made = busy(lanes("slow"))
    assert late(made, one) == []
    passage = made.passages[one.id]
    long = LANES["long"]
    assert (passage.request.lane, passage.request.priority) == ("long", long.priority)
    assert passage.request.wait_until == 1.0 + long.wait_bound_s
    assert passage.request.first_token_by == 1.0 + long.ttft_target_s
    assert passage.request.relegated
    assert (made.waiting("slow"), made.waiting("long")) == (0, 1)


def test_it_is_sent_as_one_of_the_lane_that_it_went_to_and_says_so() -> None:
    made = busy(lanes("slow"))
    (held,) = made.passages
    one = request("slow", at=1.0)
    late(made, one)
    (sent,) = made.on(Ended(held, Outcome.COMPLETED, (10, 10)), 3.5)
    assert isinstance(sent, Dispatch)
    assert (sent.request_id, sent.lane) == (one.id, "long")
    assert (made.running("slow"), made.running("long")) == (0, 1)
    made.on(Ended(one.id, Outcome.COMPLETED, (10, 10)), 4.0)
    assert (made.running("slow"), made.running("long")) == (0, 0)


def test_it_is_refused_in_the_end_if_no_lane_below_can_take_it() -> None:
    made = busy(lanes("slow"))
    one = request("slow", at=1.0)
    late(made, one)
    (refused,) = made.on(Tick(), 1.0 + LANES["long"].wait_bound_s)
    assert isinstance(refused, Refuse)
    assert (refused.request_id, refused.outcome) == (one.id, Outcome.WAITED_TOO_LONG)
    assert one.id not in made.passages


def test_lanes_that_relegate_pass_it_on_down_to_the_last() -> None:
    made = busy(lanes("slow", "long", "batch"))
    one = request("slow", at=1.0)
    late(made, one)
    assert made.on(Tick(), 1.0 + LANES["long"].wait_bound_s) == []
    assert made.passages[one.id].request.lane == "batch"
    (refused,) = made.on(Tick(), 1.0 + LANES["batch"].wait_bound_s)
    assert isinstance(refused, Refuse)


@pytest.mark.parametrize(("wish", "lane", "waits"), [("relegate", "fast", True), ("refuse", "slow", False)])
def test_the_client_may_wish_otherwise(wish: str, lane: str, waits: bool) -> None:
    made = busy(lanes("slow"))
    one = request(lane, at=1.0).but(when_late=wish)
    late(made, one, LANES[lane].wait_bound_s)
    assert (one.id in made.passages) is waits


@pytest.mark.parametrize(("wish", "waits"), [("", False), ("refuse", False), ("relegate", True)])
def test_what_promises_a_first_token_itself_is_relegated_only_if_its_client_wishes_it(wish: str, waits: bool) -> None:
    made = busy(lanes("slow"))
    usual, own = request("slow", at=1.0), request("slow", at=1.0).but(wait_until=1.8, ttft_s=1.0, when_late=wish)
    made.on(Arrived(usual), 1.0)
    late(made, own, 0.8)
    assert (own.id in made.passages) is waits
    made.on(Tick(), 3.0)
    assert made.passages[usual.id].request.lane == "long"


def test_a_prediction_relegates_at_once() -> None:
    made = busy(lanes("slow"))
    for number in range(4):  # the backlog has lasted for longer than the lane allows
        made.on(Arrived(request("slow", at=0.1 * number, tenant="t")), 0.1 * number)
    commands = made.on(Arrived(one := request("slow", at=1.9, tenant="t", tokens=600)), 1.9)
    more = made.on(Arrived(two := request("slow", at=1.95, tenant="t")), 1.95)
    assert commands == more == []
    assert {made.passages[each.id].request.lane for each in (one, two)} <= {"slow", "long"}


def test_a_full_queue_below_takes_none() -> None:
    made = busy(lanes("slow", long={"queue_limit": 1}))
    first, second = request("slow", at=1.0), request("slow", at=1.0)
    made.on(Arrived(first), 1.0)
    made.on(Arrived(second), 1.0)
    commands = made.on(Tick(), 3.0)
    assert [type(command) for command in commands] == [Refuse]
    assert made.waiting("long") == 1


def test_only_lanes_that_replicas_serve_and_that_allow_longer_waits_are_below() -> None:
    only = Replica(id="a", url="http://x", slots=1, lanes=frozenset(("fast", "slow")))
    (refused,) = late(busy(lanes("slow"), only), request("slow", at=1.0))
    assert isinstance(refused, Refuse)
    made = busy(lanes("slow", long={"wait_bound_s": 1.0}))
    late(made, one := request("slow", at=1.0))
    assert made.passages[one.id].request.lane == "batch"


def test_where_the_lane_below_has_replicas_of_its_own_it_goes_there_at_once() -> None:
    shared = Replica(id="a", url="http://x", slots=1, lanes=frozenset(("fast", "slow")))
    made = busy(lanes("slow"), shared)
    made.on(ReplicaJoined(Replica(id="b", url="http://y", slots=1, lanes=frozenset(("long",)))), 0.5)
    made.book.probed("b", True, False, 0.5)
    commands = late(made, one := request("slow", at=1.0))
    assert [(command.request_id, command.replica_id) for command in commands] == [(one.id, "b")]


def test_it_goes_before_what_came_later_and_never_before_a_lane_above() -> None:
    made = busy(lanes("slow"))
    (held,) = made.passages
    one = request("slow", at=1.0)
    late(made, one)
    later, above = request("long", at=3.1), request("slow", at=3.2)
    made.on(Arrived(later), 3.1)
    made.on(Arrived(above), 3.2)
    order = []
    for _ in range(3):
        (sent,) = made.on(Ended(held, Outcome.COMPLETED, (10, 10)), 3.3)
        held = sent.request_id
        order.append(held)
    assert order == [above.id, one.id, later.id]


def test_it_leaves_the_slots_that_are_kept_for_others() -> None:
    made = Dispatcher(replace(settings_of(), lanes=lanes("slow")), Health(), random.Random(1))
    made.on(ReplicaJoined(Replica(id="a", url="http://x", slots=64)), 0.0)
    made.book.probed("a", True, False, 0.0)
    made.on(Arrived(request("fast", tenant="quiet")), 0.0)
    running = [request("slow", tenant="loud") for _ in range(63)]
    for one in running:
        made.on(Arrived(one), 0.0)
    late(made, one := request("slow", at=0.1, tenant="loud"))
    assert made.passages[one.id].request.relegated
    held = [each.id for each in running if each.id in made.passages and made.passages[each.id].load is not None]
    made.on(Ended(held[0], Outcome.COMPLETED, (10, 10)), 2.5)
    assert made.passages[one.id].load is None  # the slots that are free now are for tenants and lanes that may come
    made.on(Arrived(quiet := request("fast", at=2.6, tenant="quiet")), 2.6)
    assert made.passages[quiet.id].load is not None


def test_what_replicas_have_refused_is_not_kept_waiting() -> None:
    made = Dispatcher(replace(settings_of(), lanes=lanes("slow", "long")), Health(), random.Random(1))
    made.on(ReplicaJoined(Replica(id="a", url="http://x", slots=4)), 0.0)
    made.book.probed("a", True, False, 0.0)
    made.on(Arrived(one := request("slow")), 0.0)
    full = AttemptFailed(one.id, "a", Outcome.NOT_READY, refused=True, retry_after_s=60.0)
    made.on(full, 0.1)
    commands = [command for at in (1.0, 2.0, 2.1) for command in made.on(Tick(), at)]
    assert [type(command) for command in commands] == [Refuse]


def test_what_was_relegated_and_is_then_refused_by_replicas_waits_no_longer_than_its_own_lane_allows() -> None:
    """It may be this request alone that a replica refuses: in lane batch that would be tried for four minutes."""
    made = busy(lanes("slow", "long"))
    (held,) = made.passages
    one = request("slow", at=1.0)
    late(made, one)
    made.on(Tick(), 1.0 + LANES["long"].wait_bound_s)
    assert made.passages[one.id].request.lane == "batch"
    now, tries = 20.0, 0
    commands = made.on(Ended(held, Outcome.COMPLETED, (10, 10)), now)
    while not commands or isinstance(commands[0], Dispatch):
        tries += len(commands)
        if commands:
            commands = made.on(AttemptFailed(one.id, "a", Outcome.NOT_READY, refused=True), now)
        else:
            assert made.wake_at < 60.0
            now = max(now + 1e-3, made.wake_at)
            commands = made.on(Tick(), now)
    (refused,) = commands
    assert isinstance(refused, Refuse)
    assert tries > 1
    assert (refused.outcome, refused.message) == (
        Outcome.WAITED_TOO_LONG,
        "it waited 21.00 s; every replica says that it is full",
    )
    assert now == pytest.approx(20.0 + LANES["slow"].wait_bound_s, abs=0.01)
    assert not any(made.holdings().values())


def test_a_stream_that_has_begun_is_not_ended_because_a_replica_is_full() -> None:
    made = busy(lanes("slow"))
    (held,) = made.passages
    one = request("slow", at=1.0)
    late(made, one)
    made.on(Ended(held, Outcome.COMPLETED, (10, 10)), 3.5)
    made.on(FirstToken(one.id), 3.6)
    made.on(AttemptFailed(one.id, "a", Outcome.NOT_READY, refused=True, retry_after_s=60.0), 4.0)
    made.on(Tick(), 7.0)
    assert one.id in made.passages


def test_the_intake_takes_the_wish_and_nothing_else() -> None:
    intake = intake_for(GatewayConfig(), dict(LANES))
    fields: dict[str, Any] = {
        "id": "r", "arrived": 0.0, "model": "m", "lane": LANES["slow"], "priority": 1, "name": "t",
        "tenant": GatewayConfig().anonymous, "prompt_tokens": 10, "allowed": 10, "stream": True, "choices": 1,
        "prefix": (), "session": None,
    }  # fmt: skip
    assert intake.request(**fields).when_late == ""
    assert intake.request(**fields, when_late="relegate").when_late == "relegate"
    with pytest.raises(InvalidRequest, match="x-headgate-when-late is refuse or relegate, not 'perhaps'"):
        intake.request(**fields, when_late="perhaps")


def test_replicas_may_have_come_to_name_its_model_meanwhile() -> None:
    made = busy(lanes("slow"))
    (held,) = made.passages
    one = request("slow", at=1.0)
    made.on(Arrived(one), 1.0)
    made.on(ReplicaJoined(Replica(id="a", url="http://x", slots=1, model="m")), 1.5)
    assert made.on(Tick(), 3.0) == []
    assert (made.waiting("slow"), made.waiting("long")) == (0, 1)
    assert made.wake_at > 3.0
    (sent,) = made.on(Ended(held, Outcome.COMPLETED, (10, 10)), 3.5)
    assert isinstance(sent, Dispatch)
    made.on(Ended(one.id, Outcome.COMPLETED, (10, 10)), 4.0)
    assert not any(made.holdings().values())


def test_a_lane_that_is_not_open_to_its_tenant_takes_none() -> None:
    made = busy(lanes("slow"))
    names = GatewayConfig(tenants=(Tenant(name="t", lanes=frozenset(("fast", "slow", "batch"))), Tenant(name="u")))
    made.reconfigure(replace(settings_of(expected=expected(names)), lanes=lanes("slow")))
    one, other = request("slow", at=1.0, tenant="t"), request("slow", at=1.0, tenant="u")
    made.on(Arrived(other), 1.0)
    assert late(made, one) == []
    assert (made.passages[one.id].request.lane, made.passages[other.id].request.lane) == ("batch", "long")


def test_what_a_failed_attempt_was_charged_goes_with_it() -> None:
    """Else its tenant would be given tokens in the lower lane that it was charged in its own."""
    made = busy(lanes("slow"))
    made.on(Arrived(one := request("slow", at=1.0, tokens=400)), 1.0)
    own = made.passages[one.id].lane_queue.queue
    made.passages[one.id].charged = 400  # by an attempt that failed, after which it waits again
    own.charge(one.tenant, one.weight, 400)
    made.on(Tick(), 4.0)
    passage = made.passages[one.id]
    lower = passage.lane_queue.queue
    assert passage.request.lane == "long"
    assert _counter(own, one) == 0.0
    assert _counter(lower, one) == passage.charged == 400
    made.on(Ended(one.id, Outcome.COMPLETED, (300, 7)), 5.0)
    assert _counter(lower, one) == 307


def _counter(queue: FairQueue, one: Request) -> float:
    return queue._tenants[one.tenant].counter
