"""Asks the brain of a gateway for decisions: the dispatcher's port in a worker.

    event → one message; the brain's commands come back → `obey`, in a later turn of the loop
    the brain is gone → requests at replicas go on; those that wait, wait for it to come back, AWAY_S at most
    the brain is back → every open request is registered there anew

Nothing here decides: a request that the brain can't be asked about in time is refused in words.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from headgate.gateway.placing import Ticket
from headgate.gateway.worker.frames import (
    ARRIVED,
    ASK,
    DISPATCH,
    ENDED,
    FAILED,
    FIRST,
    HEDGE,
    HELLO,
    KNOWN,
    RECORD,
    REFUSE,
    RESUMED,
    STATE,
    WON,
    Link,
    packed,
)
from headgate.gateway.worker.state import WorkerState, thawed
from headgate.model.clock import Clock
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
    Refuse,
)
from headgate.model.lane import Lane
from headgate.model.outcome import Outcome
from headgate.model.record import QuoteTold, Record
from headgate.model.replica import Replica, ReplicaId
from headgate.model.tier import Tier
from headgate.policy.dispatch.port import DispatchPort
from headgate.policy.tenants.limits import OverLimit, Rate, RateView

log = logging.getLogger(__name__)

AWAY_S: Final = 3.0
"""Seconds that a request waits for a brain that is gone; then it is refused. One is started again in about a second."""
MOST_AWAY: Final = 1024
"""Requests that wait for a brain that is gone; a further one is refused at once."""
MOST_BEHIND_BYTES: Final = 8 * 1024 * 1024
"""Bytes that the brain may be behind in reading; beyond them requests are refused at once."""
MOST_RECORDS: Final = 4096
"""Records that are kept for a brain that is gone; further ones are lost, and counted."""
CONNECT_EVERY_S: Final = 0.05
_GONE: Final = "the process that decides is being started again; try again"

_read_dispatch = msgspec.msgpack.Decoder(
    tuple[str, str, int, bool, str, int, str, QuoteTold | None, Any, float | None]
).decode
_read_refuse = msgspec.msgpack.Decoder(tuple[Refuse, Any]).decode
_read_hedge = msgspec.msgpack.Decoder(Hedge).decode
_read_known = msgspec.msgpack.Decoder(tuple[int, int, dict[str, int]]).decode
_read_bytes = msgspec.msgpack.Decoder(bytes).decode

Known = Callable[[int, dict[str, int]], None]
"""Hears how much of a prompt any replica has cached, and those of each lane."""


class TicketHolder(Protocol):
    """The worker's gateway, as its port uses it."""

    tickets: dict[str, Ticket]

    def obey(self, commands: list[Command], now: float) -> None: ...


class BrainPort(DispatchPort):
    """Built within the running loop."""

    def __init__(self, path: Path, number: int, pid: int, clock: Clock) -> None:
        """`path`: where the brain listens for its workers. `number`, `pid`: this worker."""
        lanes: dict[str, Lane] = {}
        tiers: dict[str, Tier] = {}
        super().__init__(lanes, tiers)
        self.lost_records = 0
        self._path = path
        self._who = (number, pid)
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        """None: the brain is not there."""
        self._gone = asyncio.Event()
        """Set when the connection is lost."""
        self._hands: TicketHolder | None = None
        self._on_state: Callable[[WorkerState], None] | None = None
        self._replicas: list[Replica] = []
        self._rates: dict[str, RateView] = {}
        """By tenant with limits per minute, as the brain said last; the config bounds them."""
        self._unheard: dict[str, float] = {}
        """By request: when the brain was asked what is to become of it, and has not answered since."""
        self._pace: dict[str, tuple[float, float]] = {}
        """By unstreamed request at a replica: when it was sent, and the replica's seconds per token."""
        self._asked: dict[int, Known] = {}
        self._questions = 0
        self._records: deque[Record] = deque()
        """Records for the next brain."""

    # -- wiring ----------------------------------------------------------------------------------------------

    def serve(self, hands: TicketHolder) -> None:
        """Carries the brain's commands out with this gateway from now on."""
        self._hands = hands

    def tell_state(self, hear: Callable[[WorkerState], None]) -> None:
        """Hands what the brain says of config and replicas to `hear` from now on."""
        self._on_state = hear

    async def run(self) -> None:
        """Keeps the connection to the brain up, until cancelled."""
        while True:
            self._gone.clear()
            try:
                await self._loop.create_unix_connection(self._new_link, str(self._path))
            except OSError:
                await asyncio.sleep(CONNECT_EVERY_S)
                continue
            await self._gone.wait()

    def _new_link(self) -> Link:
        return Link(self._take, self._made, self._lost)

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    @property
    def is_up(self) -> bool:
        return self._link is not None

    # -- DispatchPort ----------------------------------------------------------------------------------------

    def on(self, event: Event, now: float) -> list[Command]:
        link = self._link
        if isinstance(event, Arrived):
            request = event.request
            if link is None:
                if len(self._unheard) >= MOST_AWAY:
                    return [_refused(request.id)]
            elif link.behind > MOST_BEHIND_BYTES:
                return [_refused(request.id, "more requests wait than the process that decides can keep up with")]
            self._unheard[request.id] = now
            if link is None:
                self._loop.call_later(AWAY_S, self._give_up, request.id, now)
            else:
                link.send(ARRIVED, packed(request))
        elif isinstance(event, AttemptFailed):
            self._unheard[event.request_id] = now
            if link is not None:
                link.send(FAILED, event)
            elif self._is_streaming(event.request_id):
                return [_refused(event.request_id)]
            else:
                self._loop.call_later(AWAY_S, self._give_up, event.request_id, now)
        elif isinstance(event, Ended):
            self._unheard.pop(event.request_id, None)
            self._pace.pop(event.request_id, None)
            if link is not None:
                link.send(ENDED, event)
        elif link is not None:
            if isinstance(event, FirstToken):
                link.send(FIRST, event)
            elif isinstance(event, HedgeWon):
                link.send(WON, event)
        return []

    def computed(self, request_id: str, now: float) -> int:
        sent_at, token_s = self._pace.get(request_id, (now, 1.0))
        return int((now - sent_at) / max(token_s, 1e-6))

    def replicas(self) -> list[Replica]:
        return self._replicas

    def with_room(self, model: str) -> list[ReplicaId]:
        return []  # asked for copies to a shadowed version, which the brain makes itself

    def any_usable(self) -> bool:
        return self.is_up

    def over_limit(self, tenant: str, now: float) -> OverLimit | None:
        return None  # the brain says so, when it is asked about the request

    def rates(self, tenant: str, now: float) -> RateView | None:
        return self._rates.get(tenant)

    # -- what is told beside events --------------------------------------------------------------------------

    def send(self, kind: int, content: object) -> None:
        """Tells the brain, if it is there."""
        if self._link is not None:
            self._link.send(kind, content)

    def record(self, record: Record) -> None:
        if self._link is not None:
            self._link.send(RECORD, record)
        elif len(self._records) < MOST_RECORDS:
            self._records.append(record)
        else:
            self.lost_records += 1
        # A refusal has no Ended: what is known of the request ends here.
        self._unheard.pop(record.id, None)

    def ask(self, content: tuple[object, ...], known: Known) -> None:
        """Asks how much of a prompt replicas have cached. Without a brain it is not known of any."""
        if self._link is None:
            known(0, {})
            return
        self._questions += 1
        self._asked[self._questions] = known
        self._link.send(ASK, (self._questions, *content))

    def know(self, state: WorkerState) -> None:
        """Takes what the brain says of lanes, tiers and replicas. A lane that is no longer named stays for the requests
        in it, as in the dispatcher."""
        self.lanes.update(state.lanes)
        self.tiers.update(state.tiers)
        self._replicas = [known.replica for known in state.replicas]
        limited = state.limited
        for name in [name for name in self._rates if name not in limited]:
            del self._rates[name]

    # -- the connection --------------------------------------------------------------------------------------

    def _made(self, link: Link) -> None:
        link.send(HELLO, self._who)
        self._link = link
        for ticket in () if self._hands is None else tuple(self._hands.tickets.values()):
            self._register(link, ticket)
        while self._records:
            link.send(RECORD, self._records.popleft())

    def _register(self, link: Link, ticket: Ticket) -> None:
        """Tells a new brain of a request that was there before it."""
        request, replica, answer = ticket.accepted.request, ticket.timeline.replica, ticket.so_far(self._clock())
        if answer is None or replica is None:
            self._unheard[request.id] = self._clock()
            link.send(ARRIVED, packed(request))
        else:
            self._unheard.pop(request.id, None)
            link.send(RESUMED, (packed(request), replica.id, answer.first_at is not None))

    def _lost(self, link: Link) -> None:
        self._gone.set()
        if self._link is not link:
            return
        self._link = None
        log.warning("the process that decides is gone; running streams go on, and new requests wait for it")
        asked, self._asked = self._asked, {}
        for known in asked.values():
            known(0, {})
        now = self._clock()
        for request_id in tuple(self._unheard):
            if self._is_streaming(request_id):
                self._obey(_refused(request_id), now)
            else:
                self._unheard[request_id] = now
                self._loop.call_later(AWAY_S, self._give_up, request_id, now)

    def _is_streaming(self, request_id: str) -> bool:
        """Whether the client of a request has part of its answer, and so can't wait for another replica long."""
        ticket = None if self._hands is None else self._hands.tickets.get(request_id)
        return ticket is not None and ticket.relay is not None

    def _give_up(self, request_id: str, since: float) -> None:
        """Refuses a request that still waits for the brain as it did at that time, which is gone or silent."""
        if self._unheard.get(request_id) == since and self._link is None:
            self._obey(_refused(request_id), self._clock())

    def _obey(self, command: Command, now: float) -> None:
        self._unheard.pop(command.request_id, None)
        if self._hands is not None:
            self._hands.obey([command], now)

    # -- what the brain says ---------------------------------------------------------------------------------

    def _take(self, kind: int, content: msgspec.Raw) -> None:
        if kind == DISPATCH:
            self._dispatched(content)
        elif kind == REFUSE:
            refuse, rates = _read_refuse(content)
            self._note(refuse.request_id, rates)
            self._obey(refuse, self._clock())
        elif kind == KNOWN:
            number, most, by_lane = _read_known(content)
            known = self._asked.pop(number, None)
            if known is not None:
                known(most, by_lane)
        elif kind == HEDGE:
            self._obey(_read_hedge(content), self._clock())
        elif kind == STATE and self._on_state is not None:
            self._on_state(thawed(_read_bytes(content)))

    def _dispatched(self, content: msgspec.Raw) -> None:
        request_id, replica_id, attempt, cold, model, uncached, lane, quote, rates, token_s = _read_dispatch(content)
        now = self._clock()
        self._note(request_id, rates)
        if token_s is not None:
            self._pace[request_id] = (now, token_s)
        # Why this replica, and what else was considered, the brain adds to the record itself.
        self._obey(Dispatch(request_id, replica_id, attempt, "", (), cold, None, model, uncached, lane, quote), now)
        if token_s is not None and (self._hands is None or request_id not in self._hands.tickets):
            del self._pace[request_id]  # its client had left

    def _note(self, request_id: str, rates: Any) -> None:
        """Takes what is left of the limits of a request's tenant; None: it has none."""
        ticket = None if rates is None or self._hands is None else self._hands.tickets.get(request_id)
        if ticket is not None:
            requests, tokens = rates
            view = RateView(None if requests is None else Rate(*requests), None if tokens is None else Rate(*tokens))
            self._rates[ticket.accepted.request.tenant] = view


def _refused(request_id: str, why: str = _GONE) -> Refuse:
    return Refuse(request_id, Outcome.NOT_READY, why, 1.0)
