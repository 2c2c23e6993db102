"""Drives the dispatcher in virtual time: tells it what happens, and carries out its commands.

It is the same dispatcher, with events and commands in the same order as in gateway/gateway.py. Only its surroundings
differ: arrivals come from a workload, replicas are models of replicas, and the timer is the world's.
"""

from collections.abc import Callable, Iterator
from math import inf
from typing import Final, Protocol

from headgate.model.event import (
    Arrived,
    AttemptFailed,
    Command,
    Dispatch,
    Ended,
    Event,
    FirstToken,
    Hedge,
    HedgeWon,
    Quote,
    QuoteAsked,
    Tick,
)
from headgate.model.outcome import Outcome
from headgate.model.record import QuoteTold
from headgate.model.replica import ReplicaId
from headgate.model.request import Request
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.sim.fleet import Delays
from headgate.sim.intake import SimIntake
from headgate.sim.world import World
from headgate.workload.arrival import Arrival, follow_up

SPREAD: Final = 0.6180339887
"""The golden section: multiples of it, without their whole part, are spread evenly over 0 to 1, and without chance."""


class SimTicket:
    """A request as the simulated gateway keeps it."""

    __slots__ = (
        "arrival",
        "attempts",
        "cached",
        "cold",
        "first_at",
        "gap_s",
        "gone",
        "number",
        "output",
        "queue_s",
        "quote",
        "relegated_from",
        "replica",
        "request",
        "retry_s",
        "rival",
        "said",
        "since",
        "step",
        "still",
        "told_s",
        "uncached",
        "woke_s",
    )

    def __init__(self, number: int, arrival: Arrival, request: Request, output: int, now: float) -> None:
        self.number = number
        self.arrival = arrival
        self.request = request
        self.output = output
        """Tokens that each choice will be given."""
        self.still = request.choices
        """Choices that the replica has not finished."""
        self.replica: SimulatedReplica | None = None
        """The replica that has the request, or had it last; None: none yet."""
        self.relegated_from = ""
        """The lane in which the request could not be in time; empty: it is in its own."""
        self.attempts = 0
        self.cold = False
        self.woke_s = 0.0
        """Seconds of its wait in which its replica woke up."""
        self.since = now
        """When the request began to wait, or was sent."""
        self.queue_s = 0.0
        self.retry_s = 0.0
        self.uncached = 0
        """Prompt tokens that the replica is expected to compute."""
        self.quote: QuoteTold | None = None
        """When the first token was expected. None: it was not told."""
        self.cached = 0
        """Prompt tokens found in the replica's prefix cache."""
        self.first_at: float | None = None
        self.told_s: float | None = None
        """For an unstreamed answer: seconds from sending to first token, if the engine reports them; None: it does
        not."""
        self.said = 0
        """Tokens so far, of all choices."""
        self.gap_s = 0.0
        """The longest time between two tokens, in seconds."""
        self.step = 0
        """The step, in the replica's own count, that gave the first token."""
        self.rival: SimTicket | None = None
        """The same request hedged to another replica, until either answers; None: there is none."""
        self.gone = False
        """The rival answered first: events of this ticket are ignored."""


class SimulatedReplica(Protocol):
    """Stands in for a replica. Reports `first`, `ended` or `attempt_failed` to the gateway."""

    @property
    def id(self) -> ReplicaId: ...
    @property
    def alive(self) -> bool: ...
    @property
    def tells(self) -> float:
        """Share of unstreamed answers for which the replica reports when the first token was ready."""

    @property
    def gauges(self) -> dict[str, float]: ...
    def submit(self, ticket: SimTicket) -> None: ...

    def cancel(self, ticket: SimTicket) -> None:
        """Closes the request's connection: the replica drops it after the current step."""


class Recorder(Protocol):
    """Keeps an event log."""

    def add(self, event: Event, now: float, commands: list[Command]) -> None: ...


class SimGateway:
    def __init__(
        self,
        world: World,
        dispatcher: Dispatcher,
        intake: SimIntake,
        delays: Delays,
        close: Callable[[SimTicket, Outcome, float], None],
        log: Recorder | None = None,
    ) -> None:
        """`close` is called once for every request, when it is over."""
        self.world = world
        self.dispatcher = dispatcher
        self.replicas: dict[ReplicaId, SimulatedReplica] = {}
        self.tickets: dict[str, SimTicket] = {}
        self.present = Area(world.now)
        """Requests in the gateway, waiting or at a replica."""
        self.at_work = Area(world.now)
        """Requests at a replica."""
        self._intake = intake
        self._delays = delays
        self._close = close
        self._log = log
        self._timer_at = inf
        self._arrivals: Iterator[Arrival] = iter(())
        self._number = 0
        self._over = False
        """No more arrivals will come, but for later turns of sessions."""
        self._later = 0
        """Turns of sessions that will come."""

    # -- requests ----------------------------------------------------------------------------------------

    def play(self, arrivals: Iterator[Arrival]) -> None:
        """Plays the arrivals. The world is stopped when the last request is over."""
        self._arrivals = arrivals
        self._await_next()

    def _await_next(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is not None:
            self.world.at(arrival.at_s + self._delays.accept_s, self._arrive, arrival)
        else:
            self._over = True
            self._stop_if_over()

    def _arrive(self, arrival: Arrival) -> None:
        now = self.world.now
        self._number += 1
        request, output = self._intake.request(arrival, self._number, now)
        self.tickets[request.id] = SimTicket(self._number, arrival, request, output, now)
        self.present.change(1, now)
        self.hear(Arrived(request))
        if arrival.turn <= 1:
            self._await_next()
        else:
            self._later -= 1
            self._stop_if_over()

    def quote(self, arrival: Arrival) -> Quote:
        """What a request like this would meet now; it is not served."""
        request, _ = self._intake.request(arrival, self._number + 1, self.world.now)
        return next(command for command in self.hear(QuoteAsked(request)) if isinstance(command, Quote))

    def hear(self, event: Event) -> list[Command]:
        dispatcher, now = self.dispatcher, self.world.now
        commands = dispatcher.on(event, now)
        if self._log is not None:
            self._log.add(event, now, commands)
        for command in commands:
            self._carry_out(command, now)
        if dispatcher.wake_at < self._timer_at:
            self._set_timer()
        if self._over:
            self._stop_if_over()
        return commands

    def _carry_out(self, command: Command, now: float) -> None:
        if isinstance(command, Quote):
            return
        ticket = self.tickets[command.request_id]
        if isinstance(command, Dispatch):
            ticket.attempts = command.attempt
            ticket.cold, ticket.woke_s = command.cold, command.woke_s
            ticket.queue_s += now - ticket.since
            ticket.since = now
            ticket.replica = replica = self.replicas[command.replica_id]
            self.at_work.change(1, now)
            ticket.said, ticket.still, ticket.told_s = 0, ticket.request.choices, None
            ticket.uncached = command.uncached
            ticket.quote = command.quote
            if command.lane:
                if command.lane != ticket.request.lane:
                    ticket.relegated_from = ticket.relegated_from or ticket.request.lane
                ticket.request = ticket.request.but(lane=command.lane, ttft_s=None)
            replica.submit(ticket)
        elif isinstance(command, Hedge):
            self._hedge(ticket, self.replicas[command.replica_id], now)
        else:
            ticket.queue_s += now - ticket.since
            ticket.quote = command.quote
            self._leave(ticket, command.outcome, now)

    def _hedge(self, ticket: SimTicket, replica: SimulatedReplica, now: float) -> None:
        second = SimTicket(ticket.number, ticket.arrival, ticket.request, ticket.output, now)
        second.attempts, second.queue_s = ticket.attempts, ticket.queue_s
        second.retry_s = ticket.retry_s + now - ticket.since
        second.replica = replica
        ticket.rival, second.rival = second, ticket
        self.at_work.change(1, now)
        replica.submit(second)

    def _win(self, ticket: SimTicket, rival: SimTicket) -> None:
        """Makes this ticket, which answered first, the request's; cancels the rival."""
        self._part(ticket, rival)
        self.tickets[ticket.request.id] = ticket
        if rival.replica is not None:
            rival.replica.cancel(rival)

    def _part(self, ticket: SimTicket, rival: SimTicket) -> None:
        ticket.rival = rival.rival = None
        rival.gone = True
        self.at_work.change(-1, self.world.now)

    def _leave(self, ticket: SimTicket, outcome: Outcome, now: float) -> None:
        del self.tickets[ticket.request.id]
        self.present.change(-1, self.world.now)
        self._close(ticket, outcome, now)
        if ticket.arrival.later and outcome is Outcome.COMPLETED:  # an agent that gets no answer gives up
            self._later += 1
            arrival = follow_up(ticket.arrival, now)
            self.world.at(arrival.at_s + self._delays.accept_s, self._arrive, arrival)

    # -- told by replicas ----------------------------------------------------------------------------------

    def first(self, ticket: SimTicket, way_s: float = 0.0) -> None:
        """Reports the first token, which arrives after `way_s`. For an unstreamed answer the gateway hears nothing
        until the whole answer is there; its engine may then report when the first token was ready."""
        if not ticket.request.stream:
            if (
                ticket.replica is not None
                and ticket.told_s is None
                and ticket.number * SPREAD % 1.0 < ticket.replica.tells
            ):
                ticket.told_s = self.world.now + way_s - ticket.since
        elif not ticket.gone:
            if ticket.rival is not None and ticket.replica is not None:
                self._win(ticket, ticket.rival)
                self.hear(HedgeWon(ticket.request.id, ticket.replica.id))
            ticket.first_at = self.world.now + way_s
            self.hear(FirstToken(ticket.request.id))

    def ended(self, ticket: SimTicket, outcome: Outcome, way_s: float = 0.0) -> None:
        if ticket.gone:
            return
        request, now = ticket.request, self.world.now + way_s
        usage: tuple[int, int] | None = None
        if ticket.rival is not None and ticket.replica is not None:
            self._win(ticket, ticket.rival)
            self.hear(HedgeWon(request.id, ticket.replica.id))
        if outcome is Outcome.COMPLETED:
            if ticket.first_at is None:
                ticket.first_at = now
            usage = (ticket.arrival.prompt_tokens, ticket.said)
            self._intake.learn(request, ticket.arrival, *usage)
        elif ticket.first_at is not None:
            usage = (request.prompt_tokens, ticket.said)
        self.at_work.change(-1, self.world.now)
        self._leave(ticket, outcome, now)
        cached = ticket.cached if outcome is Outcome.COMPLETED else None
        self.hear(Ended(request.id, outcome, usage, ticket.told_s, cached))

    def attempt_failed(
        self, ticket: SimTicket, outcome: Outcome, message: str, refused: bool = False, unsent: bool = False
    ) -> None:
        """Reports an attempt that failed before its first token."""
        if ticket.gone:
            return
        now, replica = self.world.now, ticket.replica
        assert replica is not None
        if ticket.rival is not None:
            other = ticket.rival
            self._part(other, ticket)
            self.tickets[ticket.request.id] = other
            self.hear(AttemptFailed(ticket.request.id, replica.id, outcome, refused, message, unsent))
            return
        ticket.retry_s += now - ticket.since
        ticket.since = now
        self.at_work.change(-1, now)
        self.hear(AttemptFailed(ticket.request.id, replica.id, outcome, refused, message, unsent))

    # -- time --------------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        self._timer_at = self.dispatcher.wake_at
        self.world.at(self._timer_at, self._tick, self._timer_at)

    def _tick(self, due: float) -> None:
        """Runs the dispatcher's timer. If the dispatcher has moved its alarm to later, the timer goes off early and is
        set again."""
        if due != self._timer_at:
            return  # the timer was set to an earlier moment meanwhile
        self._timer_at = inf
        if self.dispatcher.wake_at <= self.world.now:
            self.hear(Tick())
        elif self.dispatcher.wake_at < inf:
            self._set_timer()

    def _stop_if_over(self) -> None:
        if not self.tickets and not self._later:
            self.world.stop()


class Area:
    """A number over time, and the area below it."""

    __slots__ = ("_at", "area", "number")

    def __init__(self, now: float) -> None:
        self.number = 0
        self.area = 0.0
        self._at = now

    def change(self, by: int, now: float) -> None:
        self.area += self.number * (now - self._at)
        self._at = now
        self.number += by
