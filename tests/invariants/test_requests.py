"""Whatever requests, clients and replicas do, the dispatcher keeps its promises about each request.

A random life in virtual time: bursts, several choices, tenants with limits, replicas that fail, refuse, die and come
back, clients that leave at any moment. One replica stays up throughout, so every lane is live.
"""

import random
from heapq import heappop, heappush
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.config.gateway import GatewayConfig, Tenant
from headgate.model.event import (
    Arrived,
    AttemptFailed,
    Command,
    Dispatch,
    Ended,
    Event,
    FirstToken,
    Hedge,
    Probed,
    Refuse,
    ReplicaJoined,
    ReplicaLeft,
    Tick,
)
from headgate.model.lane import LANES
from headgate.model.outcome import Outcome
from headgate.model.replica import Replica
from headgate.model.request import Request
from headgate.policy.compose import dispatcher_for

REQUESTS = 120
SLOTS = {"steady": 6, "flaky": 4, "short-lived": 2}
TOKENS_PER_MIN = 6_000
CONFIG = GatewayConfig(
    tenants=(
        Tenant(name="limited", key_sha256=("1" * 64,), tokens_per_min=TOKENS_PER_MIN),
        Tenant(name="capped", key_sha256=("2" * 64,), concurrency=2),
        Tenant(name="free", key_sha256=("3" * 64,)),
    )
)
NEAR = 1e-6


class Life:
    """Drives one dispatcher through a random life, and checks after each event that no promise is broken."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.made = dispatcher_for(CONFIG, random.Random(seed))
        self.now = 0.0
        self.requests: dict[str, Request] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.attempts: dict[str, tuple[int, str, int]] = {}
        """The attempt that a request has at a replica now: its number, the replica, and slots; "": it waits again."""
        self.waits: dict[str, tuple[float, float]] = {}
        """For each request that is not over: seconds that it had waited before, and since when it waits, or inf."""
        self.used_tokens = 0
        """Tokens of the limited tenant's ended requests."""
        self.trace: list[tuple[float, Event, list[Command]]] = []
        self._due: list[tuple[float, int, str, int, Event]] = []
        """When, in which order, of which request and attempt; "" and -1: of any."""
        self._number = 0

    def at(self, when: float, event: Event, request_id: str = "", attempt: int = -1) -> None:
        self._number += 1
        heappush(self._due, (when, self._number, request_id, attempt, event))

    def play(self) -> None:
        self._schedule()
        while self._due or self.made.passages:
            wake_at = max(self.made.wake_at, self.now)
            if self._due and self._due[0][0] <= wake_at:
                self.now, _, request_id, attempt, event = heappop(self._due)
                if self._happens(request_id, attempt):
                    self._hear(event)
            else:
                assert wake_at < 1e6, "requests wait, and no moment is set at which they would be refused"
                self.now = wake_at
                self._hear(Tick())

    def _schedule(self) -> None:
        rng, now = self.rng, 1.0
        for name, slots in SLOTS.items():
            self.at(0.0, ReplicaJoined(Replica(id=name, url=f"http://{name}", slots=slots)))
            self.at(0.1, Probed(name, ok=True))
        for number in range(REQUESTS):
            now += rng.expovariate(20.0) if number % 20 < 15 else 0.0
            lane = LANES[rng.choice(("fast", "fast", "slow", "long", "batch"))]
            one = Request(
                id=f"r{number}",
                arrived=now,
                model="m",
                lane=lane.name,
                priority=lane.priority,
                tenant=(tenant := rng.choice(("limited", "capped", "free", "unknown"))),
                prompt_tokens=rng.randint(1, 900),
                max_output=rng.randint(1, 300),
                stream=rng.random() < 0.7,
                choices=1 if tenant == "capped" else rng.choice((1, 1, 1, 2, 4)),
                wait_until=now + lane.wait_bound_s,
                first_token_by=now + lane.ttft_target_s,
            )
            self.requests[one.id] = one
            self.at(now, Arrived(one))
            if rng.random() < 0.1:
                self.at(now + rng.expovariate(2.0), Ended(one.id, Outcome.CANCELLED, (1, 0)), one.id)
        for _ in range(6):
            down = 1.0 + rng.random() * now
            for check in range(4):
                self.at(down + check, Probed("flaky", ok=check == 3))
        self.at(2.0 + rng.random() * now, ReplicaLeft("short-lived"))

    def _happens(self, request_id: str, attempt: int) -> bool:
        """Whether an event is still true: the request has arrived and is not over, and the attempt is its current."""
        if not request_id:
            return True
        if request_id in self.outcomes or request_id not in self.made.passages:
            return False
        return attempt == -1 or self.attempts.get(request_id, (0, "", 0))[0] == attempt

    def _hear(self, event: Event) -> None:
        if isinstance(event, Ended):
            self._end(event.request_id, event.outcome)
            one, usage = self.requests[event.request_id], event.usage
            if one.tenant == "limited" and usage is not None:
                self.used_tokens += sum(usage)
        elif isinstance(event, AttemptFailed):
            self.attempts[event.request_id] = (self.attempts[event.request_id][0], "", 0)
            self.waits[event.request_id] = (self.waits[event.request_id][0], self.now)
        elif isinstance(event, Arrived):
            self.waits[event.request.id] = (0.0, self.now)
        commands = self.made.on(event, self.now)
        self.trace.append((self.now, event, list(commands)))
        for command in commands:
            self._carry_out(command)
        self._check()

    def _end(self, request_id: str, outcome: Outcome) -> None:
        assert request_id not in self.outcomes, f"{request_id} has had an outcome before"
        self.outcomes[request_id] = outcome
        self.attempts.pop(request_id, None)
        del self.waits[request_id]

    def _carry_out(self, command: Command) -> None:
        request_id = command.request_id
        one = self.requests[request_id]
        assert not isinstance(command, Hedge)
        assert request_id not in self.outcomes, f"{request_id} is over, and got {command}"
        waited, since = self.waits[request_id]
        self.waits[request_id] = (waited + self.now - since, inf)
        if isinstance(command, Refuse):
            self._end(request_id, command.outcome)
            return
        assert isinstance(command, Dispatch)
        number = self.attempts.get(request_id, (0, "", 0))[0] + 1
        # One with more choices than there are slots takes all of them.
        seat = self.made.index.seat(command.replica_id)
        assert seat is not None, "it was sent to a replica that is not there"
        slots = min(one.choices, seat.limit)
        self.attempts[request_id] = (number, command.replica_id, slots)
        self._serve(one, number, command.replica_id)

    def _serve(self, one: Request, attempt: int, replica_id: str) -> None:
        """What the replica makes of it: an answer mostly, or a failure before or after the first token."""
        rng = self.rng
        first = self.now + rng.expovariate(10.0)
        fate = rng.random()
        if fate < 0.08 and replica_id != "steady":
            self.at(first, AttemptFailed(one.id, replica_id, Outcome.REPLICA_FAILED), one.id, attempt)
        elif fate < 0.12 and replica_id != "steady":
            full = AttemptFailed(one.id, replica_id, Outcome.NOT_READY, refused=True, retry_after_s=rng.random())
            self.at(first, full, one.id, attempt)
        else:
            outcome = Outcome.REPLICA_STALLED if fate > 0.97 else Outcome.COMPLETED
            if one.stream:
                self.at(first, FirstToken(one.id), one.id, attempt)
            usage = (one.prompt_tokens, rng.randint(0, one.max_output))
            self.at(first + rng.expovariate(3.0), Ended(one.id, outcome, usage), one.id, attempt)

    def _check(self) -> None:
        taken, capped, held = dict.fromkeys(SLOTS, 0), 0, 0
        for request_id, (_, replica_id, slots) in self.attempts.items():
            if replica_id:
                one = self.requests[request_id]
                taken[replica_id] += slots
                capped += one.tenant == "capped"
                held += one.tokens if one.tenant == "limited" else 0
        for name, slots in SLOTS.items():
            assert taken[name] <= slots, f"{taken[name]} of {slots} slots of {name} are taken at {self.now}"
        assert capped <= 2
        assert self.used_tokens + held <= TOKENS_PER_MIN * (1 + self.now / 60) + 1
        if self.made.wake_at > self.now:
            for request_id, (waited, since) in self.waits.items():
                waits_s = waited + max(0.0, self.now - since)
                lane = LANES[self.made.passages[request_id].request.lane]  # a lower one where it was relegated
                assert waits_s <= lane.wait_bound_s + NEAR, f"{request_id}: {waits_s}"


seeds = st.integers(0, 2**32)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seeds)
def test_every_arrival_gets_one_outcome_no_budget_is_exceeded_and_no_wait_passes_its_bound(seed: int) -> None:
    life = Life(seed)
    life.play()
    assert set(life.outcomes) == set(life.requests)
    assert life.made.passages == {}
    assert all(load.requests == 0 for load in life.made.index.loads.values())
    for lane in LANES:
        assert life.made.waiting(lane) == 0
        assert life.made.running(lane) == 0


@settings(max_examples=10, deadline=None, derandomize=True)
@given(seeds)
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    one, other = Life(seed), Life(seed)
    one.play()
    other.play()
    assert one.trace == other.trace
    assert one.outcomes == other.outcomes


def test_another_seed_gives_another_trace() -> None:
    one, other = Life(1), Life(2)
    one.play()
    other.play()
    assert one.trace != other.trace


def test_a_random_life_meets_every_way_to_end_that_it_can_have() -> None:
    """Else the invariants would hold for want of trouble."""
    met: set[Outcome] = set()
    retried = 0
    for seed in range(12):
        life = Life(seed)
        life.play()
        met |= set(life.outcomes.values())
        retried += sum(isinstance(event, AttemptFailed) for _, event, _ in life.trace)
    assert met >= {
        Outcome.COMPLETED,
        Outcome.CANCELLED,
        Outcome.REPLICA_STALLED,
        Outcome.OVER_LIMIT,
        Outcome.WOULD_WAIT_TOO_LONG,
        Outcome.WAITED_TOO_LONG,
    }
    assert retried > 20
