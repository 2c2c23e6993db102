"""Clients that keep their connections and never stop asking, and what becomes of each request while a server drains."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.wire.serving import Answer, Client

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@dataclass
class Tally:
    """How requests ended, and connections that were found closed or refused between two of them."""

    answers: Counter[int] = field(default_factory=Counter)
    closes: int = 0
    """Answers that said `connection: close`."""
    cut: list[str] = field(default_factory=list)
    """Requests that were sent and got no answer, or not all of one."""
    refused: int = 0
    """Connections that were not accepted: how a client learns that the server is gone."""


def whole(answer: Answer) -> bool:
    """Whether a stream's end came."""
    stream = answer.headers.get("content-type", "").startswith("text/event-stream")
    return not stream or answer.body.endswith(b"data: [DONE]\n\n")


async def hammer(connect: Connect, request: bytes, tally: Tally, pause_s: float = 0.0, seed: int = 0) -> None:
    """One client, until it is no longer accepted. It keeps its connection for as long as it may."""
    rng = random.Random(seed)
    client: Client | None = None
    while True:
        if client is None:
            try:
                client = Client(*await connect())
            except (ConnectionRefusedError, FileNotFoundError):
                tally.refused += 1
                return
            except ConnectionError as error:
                tally.cut.append(f"connecting: {error!r}")
                return
        if pause_s:
            await asyncio.sleep(pause_s * rng.random())
        if client.reader.at_eof():
            client.leave()  # closed while nothing was asked: no loss
            client = None
            continue
        try:
            answer = await client.ask(request)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            tally.cut.append(repr(error))
            client.leave()
            client = None
            continue
        tally.answers[answer.status] += 1
        if not whole(answer):
            tally.cut.append(f"a stream that ends {answer.body[-80:]!r}")
        if answer.headers.get("connection") == "close":
            tally.closes += 1
            client.leave()
            client = None
