"""Who is sent to a second replica, when, and what it may cost."""

import random
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.config.gateway import GatewayConfig, RoutingConfig
from headgate.config.hedge import HedgeConfig
from headgate.explain.why import explain
from headgate.model.event import (
    Arrived,
    AttemptFailed,
    Command,
    Dispatch,
    Ended,
    FirstToken,
    Hedge,
    HedgeWon,
    Probed,
    Refuse,
    ReplicaJoined,
    Tick,
)
from headgate.model.lane import LANES
from headgate.model.outcome import Outcome
from headgate.model.record import Hedged
from headgate.model.replica import Replica
from headgate.model.request import Request
from headgate.policy.compose import dispatcher_for
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.dispatch.hedge import BURST, KEPT, MOST_WATCHED, RESULTS, Hedger, Recent
from headgate.policy.replicas.health import Health
from tests.policy.driven import settings_of
from tests.policy.records import record

CONFIG = HedgeConfig(enabled=True, least_samples=20, least_s=0.0, share=0.1)
USUAL_S = 0.1
"""What a first token takes here, unless it is late."""
numbers = count()


class Scene:
    """A dispatcher with hedging, the time, and what is at which replica."""

    def __init__(self, *slots: int, config: HedgeConfig = CONFIG) -> None:
        self.hedger = Hedger(config)
        self.made = Dispatcher(
            settings_of(LANES, routing=RoutingConfig(exploration=0.0)), Health(), random.Random(1), hedger=self.hedger
        )
        self.now = 0.0
        self.at: dict[str, str] = {}
        for name, size in zip("abcdefgh", slots, strict=False):
            self.made.on(ReplicaJoined(Replica(id=name, url=f"http://{name}", slots=size)), 0.0)
            self.made.on(Probed(name, ok=True, deep=True), 0.0)

    def hear(self, event: object) -> list[Command]:
        commands = self.made.on(event, self.now)  # type: ignore[arg-type]
        for command in commands:
            if isinstance(command, Dispatch):
                self.at[command.request_id] = command.replica_id
        return commands

    def arrive(
        self, *, tokens: int = 10, lane: str = "fast", stream: bool = True, prefix: tuple[bytes, ...] = ()
    ) -> str:
        promise = LANES[lane]
        request = Request(
            id=f"r{next(numbers)}",
            arrived=self.now,
            model="m",
            lane=lane,
            priority=promise.priority,
            prompt_tokens=tokens,
            max_output=10,
            wait_until=self.now + promise.wait_bound_s,
            first_token_by=self.now + promise.ttft_target_s,
            stream=stream,
            prefix=prefix,
            link_tokens=tokens,
        )
        self.hear(Arrived(request))
        return request.id

    def serve(self, requests: int, took_s: float = USUAL_S, **fields: object) -> None:
        """This number of requests, one after the other, all as usual."""
        for _ in range(requests):
            name = self.arrive(**fields)  # type: ignore[arg-type]
            self.now += took_s
            if fields.get("stream", True):
                self.hear(FirstToken(name))
            self.end(name)

    def end(self, name: str, outcome: Outcome = Outcome.COMPLETED) -> list[Command]:
        return self.hear(Ended(name, outcome, (10, 10) if outcome is Outcome.COMPLETED else None))

    def wait(self, for_s: float) -> list[Command]:
        """The timer goes off whenever the dispatcher wants it to."""
        until, said = self.now + for_s, []
        while self.made.wake_at <= until:
            self.now = max(self.now, self.made.wake_at)
            said += self.hear(Tick())
        self.now = until
        return said

    def late(self, **fields: object) -> tuple[str, Hedge]:
        """One that is sent to a second replica."""
        name = self.arrive(**fields)  # type: ignore[arg-type]
        (command,) = self.wait(2 * USUAL_S)
        assert isinstance(command, Hedge)
        assert command.request_id == name
        return name, command

    @property
    def requests(self) -> dict[str, int]:
        return {load.id: load.requests for load in self.made.index.loads.values()}

    def settled(self) -> None:
        """Nothing is left of anything."""
        for load in self.made.index.loads.values():
            assert (load.requests, load.prefill_tokens, load.decode_tokens) == (0, load.silent_tokens, 0)
        for pool in self.made.model_queues.values():
            assert pool.waiting == 0
            assert all((state.prefills, state.prefill_tokens) == (0, 0) for state in pool.lanes.values())
            assert all(tally.running == 0 for tally in pool.tallies.values())


@pytest.fixture
def scene() -> Scene:
    made = Scene(4, 4)
    made.serve(50)
    return made


# -- when -------------------------------------------------------------------------------------------------


def test_whoever_waits_longer_than_the_lanes_percentile_is_sent_to_another_replica(scene: Scene) -> None:
    name = scene.arrive()
    assert scene.wait(0.99 * USUAL_S) == []
    (command,) = scene.wait(0.02 * USUAL_S)
    assert isinstance(command, Hedge)
    assert {scene.at[name], command.replica_id} == {"a", "b"}
    assert scene.requests == {"a": 1, "b": 1}


def test_the_percentile_is_that_of_the_lane_and_follows_it() -> None:
    scene = Scene(8, 8)
    scene.serve(200)
    scene.serve(11, took_s=1.0)
    name = scene.arrive()
    assert scene.wait(0.9) == [], "more than one in twenty took a second"
    scene.hear(FirstToken(name))
    scene.end(name)
    scene.serve(KEPT)
    assert scene.late(), "that is forgotten"


def test_nothing_is_done_before_enough_is_known() -> None:
    scene = Scene(4, 4)
    scene.serve(CONFIG.least_samples - 1)
    scene.arrive()
    assert scene.wait(10.0) == []
    scene.serve(1)
    assert isinstance(scene.late()[1], Hedge)


def test_answers_in_one_piece_are_measured_by_themselves() -> None:
    scene = Scene(8, 8)
    scene.serve(50)
    name = scene.arrive(stream=False)
    assert scene.wait(5.0) == [], "what a first token takes says nothing about a whole answer"
    scene.end(name)
    scene.serve(50, took_s=3.0, stream=False)
    name = scene.arrive(stream=False)
    assert scene.wait(4.4) == [], "half as long again may just be a long one"
    (command,) = scene.wait(0.2)
    assert isinstance(command, Hedge)
    scene.hear(HedgeWon(name, command.replica_id))
    scene.end(name)
    scene.settled()


@pytest.mark.parametrize("changes", [{"longest_prompt_tokens": 9}, {"lanes": frozenset({"slow"})}, {"share": 0.0}])
def test_some_are_never_sent_twice(changes: dict[str, object]) -> None:
    scene = Scene(4, 4, config=replace(CONFIG, **changes))  # type: ignore[arg-type]
    scene.serve(50)
    scene.arrive()
    assert scene.wait(60.0) == []


def test_it_is_never_done_sooner_than_the_least() -> None:
    scene = Scene(4, 4, config=replace(CONFIG, least_s=1.0))
    scene.serve(50)
    scene.arrive()
    assert scene.wait(0.99) == []
    assert len(scene.wait(0.02)) == 1


def test_once_is_enough(scene: Scene) -> None:
    scene.serve(50)
    scene.late()
    assert scene.wait(60.0) == []


# -- where and at what cost -------------------------------------------------------------------------------


def test_alone_there_is_nobody_else_to_ask() -> None:
    scene = Scene(8)
    scene.serve(50)
    scene.arrive()
    assert scene.wait(60.0) == []


def test_it_is_off_while_the_replicas_are_busy(scene: Scene) -> None:
    names = [scene.arrive() for _ in range(6)]
    assert scene.wait(1.0) == [], "six of eight"
    for name in names[1:]:
        scene.hear(FirstToken(name))
        scene.end(name)
    (command,) = scene.wait(5.0)
    assert isinstance(command, Hedge), "it is looked at again"
    assert command.request_id == names[0]


def test_it_is_off_while_anybody_waits() -> None:
    scene = Scene(1, 1, config=replace(CONFIG, most_use=1.0))
    scene.serve(50)
    names = [scene.arrive() for _ in range(3)]
    scene.hear(FirstToken(names[1]))
    assert scene.wait(0.3) == []
    assert [type(one) for one in scene.end(names[1])] == [Dispatch], "room goes to whoever waits"


def test_a_replica_that_has_not_served_yet_is_not_the_one_to_ask(scene: Scene) -> None:
    scene.arrive()
    for load in scene.made.index.loads.values():
        load.cold = True
    assert scene.wait(10.0) == []


def test_the_budget_holds_from_the_first_request_on() -> None:
    scene = Scene(400, 400)
    scene.serve(20)
    for _ in range(50):
        scene.arrive()
    sent = scene.wait(60.0)
    assert len(sent) == int(0.1 * 70)


def test_little_is_saved_up() -> None:
    scene = Scene(400, 400)
    scene.serve(1000)
    for _ in range(60):
        scene.arrive()
    assert len(scene.wait(0.11)) == BURST, "though there were a thousand requests without any"


def test_those_passed_over_for_want_of_budget_are_looked_at_again() -> None:
    scene = Scene(400, 400)
    scene.serve(20)
    names = [scene.arrive() for _ in range(10)]
    assert len(scene.wait(0.11)) == 3
    scene.serve(20)
    more = scene.wait(1.0)
    assert {command.request_id for command in more} < set(names)
    assert len(more) == 2


def test_a_request_that_fails_and_is_sent_again_in_one_moment_is_looked_at_once() -> None:
    scene = Scene(4, 4, 4)
    scene.serve(50)
    name = scene.arrive()
    scene.hear(AttemptFailed(name, scene.at[name], Outcome.REPLICA_FAILED))
    assert [type(command) for command in scene.wait(1.0)] == [Hedge]
    scene.end(name, Outcome.CANCELLED)
    scene.settled()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), late=st.floats(0.0, 1.0), share=st.sampled_from((0.0, 0.02, 0.1, 0.5)))
def test_whatever_happens_the_budget_is_kept_and_all_room_comes_back(seed: int, late: float, share: float) -> None:
    """Replicas that answer, fail and hang, in any order, with clients that leave."""
    rng = random.Random(seed)
    scene = Scene(6, 6, 6, config=replace(CONFIG, share=share))
    scene.serve(30)
    arrived, hedges = 30, 0
    open_: dict[str, list[str]] = {}
    for _ in range(300):
        said: list[Command] = []
        if rng.random() < 0.5:
            tokens = rng.choice((10, 700))
            name = scene.arrive(tokens=tokens, lane="fast" if tokens < 512 else "slow", stream=rng.random() < 0.8)
            arrived += 1
            if name in scene.at:
                open_[name] = [scene.at[name]]
        elif open_ and rng.random() > late:
            name = rng.choice(sorted(open_))
            said = _something(scene, name, open_, rng)
        said += scene.wait(rng.choice((0.0, 0.05, 0.2)))
        for command in said:
            if isinstance(command, Hedge):
                hedges += 1
                open_[command.request_id].append(command.replica_id)
            elif isinstance(command, Dispatch):
                open_[command.request_id] = [command.replica_id]
        assert hedges <= share * arrived + 1e-9
    for name in sorted(scene.made.passages):
        scene.end(name, Outcome.CANCELLED)
    scene.settled()
    assert sum(scene.hedger.counts.values()) == hedges
    assert {result for _, result in scene.hedger.counts} <= set(RESULTS)


def _something(scene: Scene, name: str, open_: dict[str, list[str]], rng: random.Random) -> list[Command]:
    places = open_[name]
    what = rng.choice(("first", "first", "failed", "gone"))
    who = rng.choice(places)
    if what == "failed":
        said = scene.hear(AttemptFailed(name, who, Outcome.REPLICA_FAILED, refused=rng.random() < 0.5))
        places.remove(who)
        if not places:
            del open_[name]  # it waits, was refused, or is at another one, as the commands say
        return said
    said = []
    if what == "first":
        if len(places) > 1:
            said += scene.hear(HedgeWon(name, who))
        said += scene.hear(FirstToken(name))
    del open_[name]
    return said + scene.end(name, Outcome.COMPLETED if what == "first" else Outcome.CANCELLED)


# -- who is the one ---------------------------------------------------------------------------------------


def test_the_winner_has_it_and_the_loser_has_its_room_back(scene: Scene) -> None:
    name, command = scene.late()
    scene.hear(HedgeWon(name, command.replica_id))
    scene.hear(FirstToken(name))
    assert scene.requests == {scene.at[name]: 0, command.replica_id: 1}
    load = scene.made.index.loads[command.replica_id]
    assert (load.prefill_tokens, load.decode_tokens) == (0, 10)
    scene.end(name)
    scene.settled()
    assert scene.hedger.counts == {("fast", "won"): 1}


def test_a_replica_that_lost_is_given_less_until_it_is_heard_of(scene: Scene) -> None:
    """Its requests are taken from it because it is stuck: it must not look idle for that."""
    name, command = scene.late()
    load = scene.made.index.loads[scene.at[name]]
    scene.hear(HedgeWon(name, command.replica_id))
    scene.hear(FirstToken(name))
    scene.end(name)
    assert (load.requests, load.prefill_tokens) == (0, 10)
    one = scene.arrive()
    assert scene.at[one] == command.replica_id, "the one that answers"
    while scene.at[last := scene.arrive()] != load.id:
        assert scene.requests[command.replica_id] <= 4, "it has no room for more"
    scene.hear(FirstToken(last))
    assert (load.silent_tokens, load.prefill_tokens) == (0, 0)


def test_the_first_may_still_win(scene: Scene) -> None:
    name, command = scene.late()
    scene.hear(HedgeWon(name, scene.at[name]))
    scene.hear(FirstToken(name))
    assert scene.requests == {scene.at[name]: 1, command.replica_id: 0}
    scene.end(name)
    scene.settled()
    assert scene.hedger.counts == {("fast", "lost"): 1}


def test_if_the_first_fails_the_second_simply_is_the_request(scene: Scene) -> None:
    name, command = scene.late()
    assert scene.hear(AttemptFailed(name, scene.at[name], Outcome.REPLICA_FAILED)) == []
    assert scene.requests == {scene.at[name]: 0, command.replica_id: 1}
    assert scene.made.retries.debt == 0, "that was no retry"
    scene.hear(FirstToken(name))
    scene.end(name)
    scene.settled()
    assert scene.hedger.counts == {("fast", "took_over"): 1}


def test_the_second_is_remembered_to_have_the_prompt_once_it_is_the_request(scene: Scene) -> None:
    def known(replica_id: str) -> bool:
        return b"prompt" in scene.made.book.entries[replica_id].links.seen

    name, command = scene.late(prefix=(b"prompt",))
    assert (known(scene.at[name]), known(command.replica_id)) == (True, False)
    scene.hear(AttemptFailed(name, scene.at[name], Outcome.REPLICA_FAILED))
    assert (known(scene.at[name]), known(command.replica_id)) == (False, True)
    scene.hear(AttemptFailed(name, command.replica_id, Outcome.REPLICA_FAILED))
    assert not known(command.replica_id)


def test_if_the_second_fails_nothing_has_happened(scene: Scene) -> None:
    name, command = scene.late()
    assert scene.hear(AttemptFailed(name, command.replica_id, Outcome.REPLICA_FAILED)) == []
    assert scene.requests == {scene.at[name]: 1, command.replica_id: 0}
    scene.hear(FirstToken(name))
    scene.end(name)
    scene.settled()
    assert scene.hedger.counts == {("fast", "failed"): 1}


@pytest.mark.parametrize("order", ["first", "second"])
def test_if_both_fail_it_is_tried_again_elsewhere(order: str) -> None:
    scene = Scene(4, 4, 4)
    scene.serve(60)
    name, command = scene.late()
    both = [scene.at[name], command.replica_id]
    one, other = both if order == "first" else both[::-1]
    scene.hear(AttemptFailed(name, one, Outcome.REPLICA_FAILED))
    (again,) = scene.hear(AttemptFailed(name, other, Outcome.REPLICA_FAILED))
    assert isinstance(again, Dispatch)
    assert again.replica_id not in both
    scene.end(name, Outcome.CANCELLED)
    scene.settled()


def test_a_client_that_leaves_gives_both_back(scene: Scene) -> None:
    name, _ = scene.late()
    scene.end(name, Outcome.CANCELLED)
    scene.settled()
    assert scene.hedger.counts == {("fast", "cancelled"): 1}


def test_a_long_prompt_at_two_replicas_that_is_not_heard_of_stops_counting_at_both() -> None:
    scene = Scene(4, 4)
    scene.serve(60, took_s=60.0, tokens=600, lane="slow")  # so long it is thought to take
    scene.serve(50, tokens=600, lane="slow", stream=False)
    name = scene.arrive(tokens=600, lane="slow", stream=False)
    (command,) = scene.wait(10.0)
    assert isinstance(command, Hedge)
    state = scene.made.passages[name].lane_queue
    assert (state.prefills, state.prefill_tokens) == (2, 1200)
    scene.now += 100.0
    scene.hear(Tick())
    assert (state.prefills, state.prefill_tokens) == (0, 0)
    scene.end(name)
    scene.settled()


def test_a_long_prefill_counts_at_both() -> None:
    scene = Scene(4, 4)
    scene.serve(50, tokens=600, lane="slow")
    name, command = scene.late(tokens=600, lane="slow")
    state = scene.made.passages[name].lane_queue
    assert (state.prefills, state.prefill_tokens) == (2, 1200)
    scene.hear(HedgeWon(name, command.replica_id))
    assert (state.prefills, state.prefill_tokens) == (1, 600)
    scene.hear(FirstToken(name))
    scene.end(name)
    scene.settled()


def test_what_is_gone_on_with_is_not_sent_twice(scene: Scene) -> None:
    name = scene.arrive()
    scene.hear(FirstToken(name))
    scene.hear(AttemptFailed(name, scene.at[name], Outcome.REPLICA_FAILED))
    assert scene.wait(5.0) == [], "its client has heard the beginning from another"


# -- what is learned --------------------------------------------------------------------------------------


def test_being_hedged_does_not_make_a_lane_look_quicker(scene: Scene) -> None:
    """Otherwise each hedge would lower the percentile, and bring the next one about sooner."""
    times = scene.hedger.lanes["fast"].streamed
    before, known = times.percentile(0.95), len(times)
    for _ in range(3):
        scene.serve(10)
        name, command = scene.late()
        scene.hear(HedgeWon(name, command.replica_id))
        scene.hear(FirstToken(name))
        scene.end(name)
    assert len(times) == known + 33
    assert times.percentile(0.95) >= before
    assert times.percentile(1.0) == pytest.approx(2 * USUAL_S)


@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=2500), st.sampled_from((0.5, 0.9, 0.95, 0.99)))
@settings(max_examples=40, deadline=None)
def test_the_percentile_is_exact_of_the_latest(values: list[float], share: float) -> None:
    recent = Recent()
    for value in values:
        recent.add(value)
    latest = sorted(values[-KEPT:])
    assert len(recent) == len(latest)
    assert recent.percentile(share) in latest
    assert sum(value <= recent.percentile(share) for value in latest) >= share * len(latest) - 1e-9


def test_the_alarm_is_set_only_for_those_who_still_wait(scene: Scene) -> None:
    names = [scene.arrive() for _ in range(5)]
    due = scene.made.wake_at
    assert due == pytest.approx(scene.now + USUAL_S)
    scene.now += 0.01
    for name in names:
        scene.hear(FirstToken(name))
    assert scene.made.wake_at > due + 1


# -- what is said of it -----------------------------------------------------------------------------------


def test_it_is_off_unless_the_config_says_so() -> None:
    assert dispatcher_for(GatewayConfig(), random.Random(1)).hedger is None
    made = dispatcher_for(GatewayConfig(hedge=CONFIG), random.Random(1))
    assert made.hedger is not None
    assert made.hedger.config is CONFIG


def test_why_says_what_was_lost_on_the_first_and_that_there_was_a_second() -> None:
    told = explain(record(replica="b", retry_s=0.8, hedge=Hedged("a", "b", 0.801, "won")), (), ())
    lost = next(part for part in told.parts if part.stage == "retry")
    assert (lost.took_s, lost.cause) == (0.8, "replica a had not answered when b was asked as well, which did")
    (route,) = (part.cause for part in told.parts if part.stage == "route")
    assert route == "b: least loaded; hedged on b after 801 ms, which was first"
    told = explain(record(hedge=Hedged("a", "b", 0.8, "lost")), (), ())
    assert any(part.cause.endswith("hedged on b after 800 ms, which was not first") for part in told.parts)


def test_a_second_that_refuses_is_full_and_it_costs_no_attempt(scene: Scene) -> None:
    name, command = scene.late()
    refused = AttemptFailed(name, command.replica_id, Outcome.REPLICA_FAILED, refused=True, retry_after_s=5.0)
    assert scene.hear(refused) == []
    other = scene.made.index.get(command.replica_id)
    assert other is not None
    assert other.room == 0
    passage = scene.made.passages[name]
    assert passage.attempts - passage.spared == 1
    scene.hear(FirstToken(name))
    scene.end(name)
    scene.settled()


@pytest.mark.parametrize("order", ["first", "second"])
def test_both_of_two_that_fail_are_attempts(order: str) -> None:
    scene = Scene(4, 4, 4, 4)
    scene.serve(60)
    name, command = scene.late()
    both = [scene.at[name], command.replica_id]
    one, other = both if order == "first" else both[::-1]
    scene.hear(AttemptFailed(name, one, Outcome.REPLICA_FAILED))
    (again,) = scene.hear(AttemptFailed(name, other, Outcome.REPLICA_FAILED))
    assert isinstance(again, Dispatch)
    assert again.attempt == 3
    (last,) = scene.hear(AttemptFailed(name, again.replica_id, Outcome.REPLICA_FAILED))
    assert isinstance(last, Refuse)
    scene.settled()


def test_no_more_are_watched_than_can_be_kept() -> None:
    scene = Scene(4)
    name = scene.arrive()
    passage = scene.made.passages[name]
    for number in range(MOST_WATCHED + 3):
        scene.hedger.look_again(passage, float(number))
    assert len(scene.hedger._watched) == MOST_WATCHED
