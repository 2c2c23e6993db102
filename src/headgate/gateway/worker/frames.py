"""Defines what a brain and its workers tell each other, and the connection that carries it.

A frame is four bytes of length and a list of messages in MessagePack, each a kind and its content: all that was said in
one turn of the event loop, in one write. Events and commands are the dispatcher's own (model/event.py). Both ends are
processes of one user, started from one program: what comes is trusted, but may end anywhere, since the other end may be
killed in the middle of a frame.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

import msgspec

from headgate.model.request import Request
from headgate.policy.dispatch.intake import CachedTokens

HELLO: Final = 1
"""Worker: (its number, its process id). The first message of a connection."""
ARRIVED: Final = 2
"""Worker: a Request, as `packed`."""
FIRST: Final = 20
"""Worker: a FirstToken."""
ENDED: Final = 21
"""Worker: an Ended."""
FAILED: Final = 22
"""Worker: an AttemptFailed."""
WON: Final = 23
"""Worker: a HedgeWon."""
RECORD: Final = 4
"""Worker: the Record of a request that has ended, or that never entered a queue."""
ASK: Final = 5
"""Worker: (number of the question, prefix, tokens of a link, tokens, model, lanes): what is cached of this prompt?"""
STATUS: Final = 6
"""Worker: (what it holds by name, when each replica last spoke, whether it listens)."""
UNSEEN: Final = 7
"""Worker: (status, path) of a request that the wire refused."""
RESUMED: Final = 8
"""Worker: (a Request, its replica, whether its first token came): it was being served when the brain was lost."""
PROMPT: Final = 9
"""Worker: (id, body as JSON) of a request whose prompt is kept."""
STATE: Final = 10
"""Brain: what workers know of the config, the replicas and the models, as `frozen` (state.py)."""
DISPATCH: Final = 11
"""Brain: (id, replica, attempt, cold, model, uncached tokens, lane, quote, rates, seconds per token)."""
REFUSE: Final = 12
"""Brain: (a Refuse, rates)."""
HEDGE: Final = 13
"""Brain: a Hedge."""
KNOWN: Final = 14
"""Brain: (number of the question, cached tokens of any replica, cached tokens by lane)."""

MOST_FRAME_BYTES: Final = 256 * 1024 * 1024
"""Longest frame that is believed: a longer one is a broken stream."""
MOST_BEHIND_BYTES: Final = 64 * 1024 * 1024
"""Bytes that may wait to be written to the other end. Beyond them it is taken for stuck, and the connection is
closed."""
_HEAD: Final = 4

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[int, msgspec.Raw]]).decode


class Link(asyncio.Protocol):
    """One end of the connection between a brain and a worker."""

    def __init__(
        self,
        take: Callable[[int, msgspec.Raw], None],
        made: Callable[["Link"], None],
        lost: Callable[["Link"], None],
    ) -> None:
        """`take`: gets each message. `made`, `lost`: hear that the connection is there, or no longer."""
        self._take = take
        self._made = made
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._said: list[tuple[int, object]] = []
        self._heard = bytearray()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def behind(self) -> int:
        """Bytes that the other end has not read yet, as far as can be known."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send(self, kind: int, content: object) -> None:
        """Says this to the other end, with all else that is said in this turn of the loop. Lost if there is no
        connection."""
        said = self._said
        said.append((kind, content))
        if len(said) == 1:
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        said, transport = self._said, self._transport
        if not said:
            return
        self._said = []
        if transport is None or transport.is_closing():
            return
        frame = _encode(said)
        transport.write(len(frame).to_bytes(_HEAD, "little") + frame)
        if transport.get_write_buffer_size() > MOST_BEHIND_BYTES:
            transport.abort()

    def close(self) -> None:
        """Says what is still to be said, and closes."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    # -- asyncio.Protocol ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class
        self._made(self)

    def data_received(self, data: bytes) -> None:
        heard = self._heard
        if heard:
            heard += data
            data = bytes(heard)
            heard.clear()
        at, end = 0, len(data)
        while end - at >= _HEAD:
            size = int.from_bytes(data[at : at + _HEAD], "little")
            if size > MOST_FRAME_BYTES:
                raise ValueError(f"a frame of {size} bytes: the stream is broken")
            if end - at - _HEAD < size:
                break
            at += _HEAD
            for kind, content in _decode(data[at : at + size]):
                self._take(kind, content)
            at += size
        if at < end:
            heard += data[at:]

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._said = []
        self._heard.clear()
        self._lost(self)


# -- requests ----------------------------------------------------------------------------------------------


def packed(request: Request) -> tuple[object, ...]:
    """A Request as MessagePack takes it."""
    return (
        request.id, request.arrived, request.model, request.lane, request.priority, request.wait_until,
        request.first_token_by, request.tenant, request.weight, request.tier, request.prompt_tokens,
        request.max_output, request.stream, request.prefix, request.session, tuple(request.unfit),
        request.fallback, request.choices, request.pinned, request.link_tokens, request.uncached_tokens,
        request.when_late, request.relegated, request.ttft_s, request.tpot_s,
    )  # fmt: skip


def unpacked(found: Iterable[Any], cached: CachedTokens | None = None) -> Request:
    """The Request of what `packed` made. `cached`: how much of its prompt replicas have; None: as the other end
    knew."""
    (
        id, arrived, model, lane, priority, wait_until, first_token_by, tenant, weight, tier, prompt_tokens,
        max_output, stream, prefix, session, unfit, fallback, choices, pinned, link_tokens, uncached_tokens,
        when_late, relegated, ttft_s, tpot_s,
    ) = found  # fmt: skip
    links = tuple(prefix)
    if links and cached is not None:
        uncached_tokens = max(1, prompt_tokens - cached(links, link_tokens, prompt_tokens, model, lane))
    return Request(
        id=id, arrived=arrived, model=model, lane=lane, priority=priority, wait_until=wait_until,
        first_token_by=first_token_by, tenant=tenant, weight=weight, tier=tier, prompt_tokens=prompt_tokens,
        max_output=max_output, stream=stream, prefix=links, session=session, unfit=frozenset(unfit),
        fallback=tuple(fallback), choices=choices, pinned=pinned, link_tokens=link_tokens,
        uncached_tokens=uncached_tokens, when_late=when_late, relegated=relegated, ttft_s=ttft_s, tpot_s=tpot_s,
    )  # fmt: skip
