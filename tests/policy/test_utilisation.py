"""How full a fleet is: by its scarcest resource, not by its slots alone."""

import random
from dataclasses import replace

import pytest

from headgate.config.gateway import GatewayConfig
from headgate.machine.profile import PROFILES
from headgate.model.event import Arrived, Ended, FirstToken, Probed, ReplicaJoined
from headgate.model.lane import LANES
from headgate.model.outcome import Outcome
from headgate.model.pace import PrefillPace
from headgate.model.replica import Replica
from headgate.policy.compose import dispatcher_for
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.replicas.utilisation import RESOURCES, Use, words
from headgate.sim.fleet import SimFleet, SimGroup, fleet_of
from headgate.sim.run import Level, Simulated, run
from headgate.workload.arrival import Arrival
from tests.policy.driven import refusing
from tests.policy.indexed import remove
from tests.policy.test_dispatcher import request

H100 = PROFILES["h100-llama3-8b"]
CONFIG = GatewayConfig(lanes=tuple(refusing(LANES).values()))


def poisson(rate: float, prompt: int, output: int, seconds: float = 120.0, **more: object) -> list[Arrival]:
    rng, at_s, made = random.Random(1), 0.0, list[Arrival]()
    while at_s < seconds:
        at_s += rng.expovariate(rate)
        made.append(Arrival(at_s, prompt, output, **more))  # type: ignore[arg-type]
    return made


def played(arrivals: list[Arrival], fleet: SimFleet | None = None, level: Level = "step") -> Simulated:
    return run(CONFIG, arrivals, fleet or fleet_of(H100, 1), seed=1, level=level)


# -- the whole ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["step", "gateway"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_fleet_that_refuses_is_full_however_few_of_its_slots_are_taken(level: Level, stream: bool) -> None:
    """Measured before: 1 % of the slots, while 43 % of the requests were refused."""
    found = played(poisson(8, 6000, 8, stream=stream), level=level)
    refused = 1 - float(found.results.ok.mean())
    assert refused > 0.3
    assert found.slots_use < 0.03
    assert found.use > 0.8
    if stream:
        assert (found.utilisation.prefill or 0) > 0.8


@pytest.mark.parametrize(("rate", "prompt", "output"), [(2, 6000, 8), (3, 6000, 8), (8, 1500, 4), (1, 6000, 8)])
def test_prefill_is_about_the_share_of_time_that_prompts_take(rate: float, prompt: int, output: int) -> None:
    """Where answers are short, about all that a replica computes is prompts."""
    found = played(poisson(rate, prompt, output))
    few = played(poisson(rate / 20, prompt, output, seconds=1200))
    alone_s = few.busy_s / len(few.results.at_s)
    expected = alone_s * len(found.results.at_s) / found.span_s
    assert found.utilisation.prefill == pytest.approx(expected, abs=0.15)


def test_many_short_prompts_on_a_quick_replica_are_not_taken_for_work() -> None:
    """Each waits for a step and a round trip: by the time to the first token alone it would be always busy."""
    found = played(poisson(60, 100, 100, seconds=60))
    assert (found.utilisation.prefill or 0) < 0.15
    assert found.use == pytest.approx(found.slots_use, abs=0.03)


def test_lanes_with_replicas_of_their_own_are_measured_by_these() -> None:
    members = (
        SimGroup(profile=H100, lanes=frozenset(("long",))),
        SimGroup(profile=H100, count=3, lanes=frozenset(("fast", "slow", "batch"))),
    )
    found = played(poisson(2, 20_000, 4), SimFleet(members=members))
    assert found.results.ok.mean() < 0.9
    assert found.use > 0.7


# -- each resource --------------------------------------------------------------------------------------------------


def world(*replicas: Replica) -> Dispatcher:
    dispatcher = dispatcher_for(CONFIG, random.Random(1))
    for replica in replicas:
        dispatcher.on(ReplicaJoined(replica), 0.0)
        dispatcher.on(Probed(replica.id, ok=True), 0.0)
    return dispatcher


def replica(name: str, slots: int | None = 8, token_limit: int | None = None) -> Replica:
    return Replica(id=name, url=f"http://{name}", slots=slots, token_limit=token_limit)


def said(dispatcher: Dispatcher, **gauges: float) -> Use:
    dispatcher.use.said = lambda _: gauges
    return dispatcher.use.read()


def test_nothing_is_known_without_a_usable_replica() -> None:
    dispatcher = world()
    assert dispatcher.use.read() == Use()
    assert (Use().largest, Use().binding, Use().known) == (None, "", {})
    assert dispatcher.use.of("a") == Use()
    assert dispatcher.use.busy("a") is None


def test_slots_are_those_of_usable_replicas() -> None:
    dispatcher = world(replica("a"), replica("b"))
    for _ in range(4):
        dispatcher.on(Arrived(request()), 0.0)
    assert dispatcher.use.read().slots == 4 / 16
    assert dispatcher.use.of("a").slots == pytest.approx(2 / 8)
    dispatcher.index.loads["a"].usable = 0.0
    assert dispatcher.use.read().slots == 2 / 8
    assert dispatcher.use.of("a") == Use()


def test_an_engine_that_takes_fewer_than_it_is_believed_to_is_full() -> None:
    """It refused more: its ceiling counts, not its 64 supposed slots."""
    dispatcher = world(replica("a", slots=None))
    dispatcher.on(Arrived(request()), 0.0)
    load = dispatcher.index.loads["a"]
    assert dispatcher.use.read().slots == pytest.approx(1 / 64)
    load.ceiling = 1.0
    dispatcher.index.changed(load)
    assert dispatcher.use.read().slots == 1.0


@pytest.mark.parametrize(
    ("gauges", "slots"),
    [
        ({}, 0.0),
        ({"batch_size": 3, "waiting": 0, "batch_limit": 4}, 0.75),
        ({"batch_size": 4, "waiting": 9, "batch_limit": 4}, 1.0),
        ({"batch_size": 4, "waiting": 9, "batch_limit": 0}, 1.0),
        ({"batch_size": 20, "waiting": 2}, 1.0),
        ({"batch_size": 50, "waiting": 2}, 0.0),
        ({"batch_size": 5, "waiting": 0}, 0.0),
    ],
)
def test_what_an_engine_says_of_its_batch_counts(gauges: dict[str, float], slots: float) -> None:
    """Others may send it requests, too."""
    assert said(world(replica("a")), **gauges).slots == slots


def test_kv_memory_as_engines_tell_it() -> None:
    dispatcher = world(replica("a"), replica("b"))
    assert said(dispatcher).kv is None
    dispatcher.use.said = lambda name: {"kv_ratio": 0.96} if name == "a" else {}
    found = dispatcher.use.read()
    assert (found.kv, found.binding, found.largest) == (0.96, "kv", 0.96)
    assert dispatcher.use.of("a").kv == 0.96
    assert said(dispatcher, kv_ratio=7.0).kv == 1.0


def test_tokens_where_they_are_limited() -> None:
    dispatcher = world(replica("a", token_limit=1000))
    dispatcher.on(Arrived(request(tokens=900)), 0.0)
    assert dispatcher.use.read().tokens == pytest.approx(0.9)
    assert dispatcher.use.of("a").tokens == pytest.approx(0.9)
    assert world(replica("a")).use.read().tokens is None


def test_waiting_for_a_replica_counts_and_for_a_cap_of_its_own_does_not() -> None:
    dispatcher = world(replica("a", slots=1))
    for _ in range(3):
        dispatcher.on(Arrived(request()), 0.0)
    assert dispatcher.queues.held_up()
    for second in range(120):
        dispatcher.use.look(float(second))
    assert dispatcher.use.read().waiting == pytest.approx(1.0, abs=0.01)
    dispatcher.index.loads["a"].usable = 0.0
    dispatcher.index.changed(dispatcher.index.loads["a"])
    assert not dispatcher.queues.held_up()  # they wait for a replica that is not there

    config = CONFIG
    config = replace(config, lanes=tuple(replace(lane, concurrency=1) for lane in config.lanes))
    capped = dispatcher_for(config, random.Random(1))
    capped.on(ReplicaJoined(replica("a")), 0.0)
    capped.on(Probed("a", ok=True), 0.0)
    for _ in range(3):
        capped.on(Arrived(request()), 0.0)
    assert capped.waiting("fast") == 2
    assert not capped.queues.held_up()


def test_one_that_has_more_to_do_than_time_counts_as_one_full_replica() -> None:
    dispatcher = world(replica("a"), replica("b"))
    use = dispatcher.use
    for name in ("a", "b"):
        load = dispatcher.index.loads[name]
        for number in range(8):
            load.pace.see(100 * number, 0, 0.1 * number)
    use.look(0.0)
    use.look(2.0)
    for second in range(3, 40):
        dispatcher.index.loads["a"].sent_tokens += 5000
        dispatcher.index.loads["a"].prefill_tokens += 5000
        use.look(float(second))
    assert use.busy("a") == pytest.approx(0.95, abs=0.05)
    assert use.busy("b") == pytest.approx(0.0, abs=0.05)
    assert use.read().prefill == pytest.approx(0.5, abs=0.05)


def test_prefill_is_forgotten_with_the_replica_and_begins_anew() -> None:
    dispatcher = world(replica("a"), replica("b"))
    use, load = dispatcher.use, dispatcher.index.loads["a"]
    use.look(0.0)
    for number in range(8):
        load.pace.see(100 * number, 0, 0.1 * number)
    load.sent_tokens, load.prefill_tokens = 20_000, 20_000
    use.look(0.5)  # too soon
    assert use.busy("a") == 0.0
    for second in range(1, 19):
        use.look(float(second))
    assert use.busy("a") == pytest.approx(0.7, abs=0.02)
    assert use.busy("b") is None  # nothing came from it yet
    load.prefill_tokens = 0  # it is done with all of it: what was expected does not matter
    use.look(19.0)
    use.look(60.0)
    assert use.busy("a") == pytest.approx(0.05, abs=0.02)
    remove(dispatcher.index, "a")
    use.look(62.0)
    assert use.busy("a") is None
    dispatcher.on(ReplicaJoined(replica("c")), 62.0)
    use.look(64.0)
    assert use.busy("c") is None
    dispatcher.index.loads["b"].sent_tokens = 50
    use.look(66.0)
    dispatcher.index.loads["b"].sent_tokens = 0  # it left and came back
    use.look(68.0)
    assert use.read().prefill is None


def test_every_resource_has_words() -> None:
    assert len({words(name) for name in (*RESOURCES, "")}) == len(RESOURCES) + 1


# -- the pace -----------------------------------------------------------------------------------------------------


def test_a_pace_is_that_of_further_tokens_not_of_the_first() -> None:
    pace, rng = PrefillPace(), random.Random(1)
    assert pace.token_s is None
    for _ in range(300):
        prompt, before = rng.randrange(50, 200), rng.randrange(0, 2000)
        pace.see(prompt, before, 0.02 + 0.00002 * (prompt + before / 2))
    assert pace.token_s == pytest.approx(0.00002, rel=0.05)
    # What a long prompt behind others takes is by far not its share of what short ones took.
    assert pace.first_s(10_000, 4_000) == pytest.approx(0.02 + 0.00002 * 12_000, rel=0.05)
    assert pace.first_s(1, 0) == pytest.approx(0.02, rel=0.05)
    assert PrefillPace().first_s(100, 0) is None


def test_where_all_prompts_are_alike_it_goes_by_the_mean_and_is_never_negative() -> None:
    pace = PrefillPace()
    for _ in range(50):
        pace.see(1900, 0, 2.0)
    assert pace.token_s == pytest.approx(0.001)
    for number in range(300):
        pace.see(10_000 - 10 * number, 0, 0.001 * number)
    assert pace.token_s == 0.0


def test_first_tokens_set_the_pace_of_their_replica() -> None:
    dispatcher = world(replica("a"))
    for number in range(6):
        now = float(number)
        dispatcher.on(Arrived(asked := request(at=now, tokens=400)), now)
        dispatcher.on(FirstToken(asked.id), now + 0.5)
        dispatcher.on(Ended(asked.id, Outcome.COMPLETED, (400, 8)), now + 0.9)
    load = dispatcher.index.loads["a"]
    assert load.sent_tokens == 2400
    assert load.pace.token_s == pytest.approx(0.001)
