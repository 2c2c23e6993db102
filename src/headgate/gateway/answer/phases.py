"""The phases of an answer on its way from a replica to a client, as a table, and the two sides that a relay speaks to.

    ASKED ── the first event that the client gets ─→ HEARD ── [DONE] ─→ DONE ── the replica ends ─→ OVER
      │ ▲                                              │
      │ └───── another replica is asked ─── BROKEN ◀───┤ breaks off, and can be continued
      └ an error status ─→ REFUSED ─→ OVER             └ breaks off, and can't ─→ OVER

From each phase an answer may be over at once: the client leaves, reads too slowly, or its time is up.
"""

from typing import Final, Protocol

from headgate.gateway.account import Summary
from headgate.model.errors import ReplicaFailed, ServeError

ASKED: Final = 0
"""Nothing has come from the replica that is asked now, or nothing that is passed on yet."""
REFUSED: Final = 1
"""The replica answers with an error status, whose body is awaited."""
BROKEN: Final = 2
"""The stream broke off after it had begun, and waits for another replica, or for its end."""
HEARD: Final = 3
"""The client gets what the replica sends."""
DONE: Final = 4
"""The client has the whole stream; the replica has not ended its HTTP message."""
OVER: Final = 5
PHASES: Final = ("ASKED", "REFUSED", "BROKEN", "HEARD", "DONE", "OVER")

ASK: Final = 0
"""A replica is asked: the first, one that takes over, or one that continues."""
REFUSE: Final = 1
BREAK: Final = 2
HEAR: Final = 3
FINISH: Final = 4
"""[DONE] has come, or was written in the replica's place."""
END: Final = 5
STEPS: Final = ("ASK", "REFUSE", "BREAK", "HEAR", "FINISH", "END")

NEVER: Final = -1
NEXT: Final[tuple[tuple[int, ...], ...]] = (
    # ASKED, REFUSED, BROKEN, HEARD, DONE, OVER
    (ASKED, ASKED, ASKED, NEVER, NEVER, NEVER),  # ASK: a replica that has been heard is not replaced
    (REFUSED, REFUSED, NEVER, NEVER, NEVER, NEVER),  # REFUSE: an error status comes first, or not at all
    (BROKEN, BROKEN, NEVER, BROKEN, NEVER, NEVER),  # BREAK
    (HEARD, NEVER, NEVER, HEARD, DONE, NEVER),  # HEAR: the first event that is passed on may be [DONE]
    (DONE, DONE, NEVER, DONE, NEVER, NEVER),  # FINISH
    (OVER, OVER, OVER, OVER, OVER, NEVER),  # END: exactly once
)
"""The phase that follows, by step and phase; NEVER: the step can't be taken."""


class RelayOwner(Protocol):
    """The owner of the request, which the relay tells what happens."""

    def on_first(self) -> None:
        """The first event of the replica that is asked now has been written to the client."""

    def on_attempt_failed(self, error: ServeError, refused: bool) -> None:
        """The attempt failed and the exchange is untouched. `refused`: the replica said that it is busy, which is no
        fault."""

    def closing(self, first: bytes, finish: str, stop: str, events: int) -> list[bytes]:
        """The events that end the stream in the replica's place. `first` is the stream's first event."""

    def may_go_on(self) -> bool:
        """Whether another replica may continue a stream that broke off."""

    def on_broken_off(self, error: ServeError) -> None:
        """A stream that has begun broke off, and waits for `go_on` or `fail`."""

    def on_end(self, summary: Summary) -> None:
        """The exchange has been answered, or the client has left."""

    def on_broken(self, flaw: Exception) -> None:
        """An exception was raised while the answer was relayed, in an unknown state: any of the above may have been
        called. `Relay.abandon` releases the replica."""


class HedgedAttempt(Protocol):
    """A hedge: the same request at another replica, while neither has answered."""

    def cancel(self) -> None:
        """The hedge is not needed. The relay's owner already knows."""

    def stand_in(self, error: ReplicaFailed, refused: bool) -> None:
        """The relay's own replica failed: the hedge's call is the relay's from now on."""
