"""Chooses endpoints for one request of a proxy that asks: the request's life as the gateway sees it.

The gateway takes the request as if a client had sent it: same lane, limits, queue, record. What differs is the end of
the queue: instead of being sent, the request gets an answer for the proxy, which endpoint it may go to, and what its
body is there. A refusal is the answer that a client of the gateway would get, with its status and headers.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from headgate.epp.observed import Observed
from headgate.gateway.account import Summary
from headgate.gateway.placing import Ticket
from headgate.model.outcome import Outcome
from headgate.model.replica import ReplicaId
from headgate.wire.errors import STATUS
from headgate.wire.exchange import Exchange

CLIENT_FAULT: Final = {400: Outcome.INVALID, 404: Outcome.UNKNOWN_MODEL, 413: Outcome.TOO_LONG, 422: Outcome.INVALID}
NO_GAPS: Final[tuple[tuple[float, float], ...]] = ()


@dataclass(frozen=True, slots=True)
class Endpoints:
    endpoints: tuple[str, ...]
    """host:port of the replica that was chosen, then of those to try if it can't be reached."""
    body: bytes | None
    """The body for the replica; None: as the client sent it."""


@dataclass(frozen=True, slots=True)
class TurnedAway:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


Decision = Endpoints | TurnedAway


class Pick:
    """One request. Stands for the connection to its client, to which the gateway writes a refusal."""

    def __init__(self, subset: frozenset[str] | None) -> None:
        """`subset`: addresses that the proxy allows; None: all. Built within the running loop."""
        self.subset = subset
        self.decided: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self.exchange: Exchange
        self.ticket: Ticket | None = None
        """The request at its replica; None: it waits, or was refused."""
        self.others: tuple[ReplicaId, ...] = ()
        self.observed: Observed | None = None
        """What the proxy shows of the answer; None: nothing."""
        self.writable = True
        self.draining = False
        self._said: list[bytes] = []

    # -- as a connection -----------------------------------------------------------------------------------

    @property
    def transport(self) -> "Pick":
        return self

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, /) -> Any:
        return None

    def abort(self) -> None:
        self.exchange.lost()

    def send(self, data: bytes) -> None:
        self._said.append(data)

    def answered(self, keep_alive: bool) -> None:
        if not self.decided.done():
            self.decided.set_result(_refusal(b"".join(self._said)))
        self._said.clear()

    # -- the request's end ---------------------------------------------------------------------------------

    def chosen(self, ticket: Ticket, decision: Endpoints) -> None:
        self.ticket = ticket
        if not self.decided.done():
            self.decided.set_result(decision)

    def summary(self, computed: int) -> tuple[Outcome, Summary]:
        """How the request ended, as far as the proxy showed it. `computed`: output tokens that its time allowed for."""
        assert self.ticket is not None
        seen, since = self.observed, self.ticket.timeline.since
        status = 200 if seen is None or not seen.status else seen.status
        outcome = Outcome.COMPLETED
        if status >= 400:
            outcome = CLIENT_FAULT.get(status, Outcome.REPLICA_FAILED)
        elif seen is not None and not seen.complete:
            outcome = Outcome.CANCELLED
        usage = None if seen is None else seen.usage
        events = seen.events if seen is not None and seen.events else computed
        return outcome, Summary(
            outcome=outcome,
            status=status if outcome is Outcome.COMPLETED or status >= 400 else STATUS[outcome],
            error=None,
            usage=None if usage is None else (usage.prompt, usage.output),
            cached_tokens=None if usage is None else usage.cached,
            timings=None if usage is None else usage.timings,
            events=0 if outcome is not Outcome.COMPLETED and seen is None else events,
            sent_at=since,
            first_at=None if seen is None else seen.first_at,
            last_at=None if seen is None else seen.last_at,
            gaps=NO_GAPS,
            stalled_s=0.0,
        )


def _refusal(answer: bytes) -> TurnedAway:
    """The HTTP answer that the gateway wrote, taken apart again."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = [(name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    framing = ("content-length", "transfer-encoding", "connection")
    return TurnedAway(int(first.split(" ")[1]), tuple(one for one in headers if one[0] not in framing), body)
