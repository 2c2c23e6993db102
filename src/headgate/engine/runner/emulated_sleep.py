"""Lets an emulated engine sleep as vLLM's sleep mode does, with a modelled time to wake up.

    POST /sleep?level=1&mode=wait   answered once it sleeps; mode abort, vLLM's own default, ends what runs
    POST /wake_up                   answered once it is awake
    GET  /is_sleeping               true from the moment it is told to sleep until it is awake

An engine that sleeps holds no KV and has its weights in host memory. Requests that come meanwhile wait for it to wake,
as they do in vLLM: it says nothing until then.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Literal
from urllib.parse import parse_qs

from headgate.engine.engine import Engine
from headgate.model.errors import InvalidRequest, QueueFull
from headgate.wire.exchange import Exchange

MOST_HELD: Final = 256
"""Maximum requests that wait for the engine to wake."""
State = Literal["awake", "dozing", "asleep", "waking"]


class SleepMode:
    """The state of one engine, and the requests that wait for it. Used on the event loop only."""

    def __init__(self, wake_s: float, engine: Callable[[], Engine | None], abort: Callable[[], None]) -> None:
        """`wake_s`: seconds that a wake-up takes. `engine` returns the engine once there is one; `abort` ends all
        requests of clients."""
        self.state: State = "awake"
        self.woken = 0
        """Wake-ups so far."""
        self._wake_s = wake_s
        self._engine = engine
        self._abort = abort
        self._held: list[tuple[Exchange, Callable[[], None]]] = []
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def holds(self, exchange: Exchange, begin: Callable[[], None]) -> bool:
        """Whether the engine does not take a request now; `begin` is then called when it is awake, if the client is
        still there. Raises QueueFull if too many wait for that."""
        if self.state == "awake":
            return False
        if len(self._held) >= MOST_HELD:
            self._held = [(other, later) for other, later in self._held if not other.done]
        if len(self._held) >= MOST_HELD:
            raise QueueFull(f"the engine is {self.state}, and {MOST_HELD} requests wait for it already")
        self._held.append((exchange, begin))
        return True

    # -- handlers ---------------------------------------------------------------------------------------------

    def sleep(self, exchange: Exchange) -> None:
        asked = parse_qs(exchange.query)
        level, mode = asked.get("level", ["1"])[-1], asked.get("mode", ["abort"])[-1]
        if level not in ("1", "2") or mode not in ("abort", "wait"):
            raise InvalidRequest("an emulated engine sleeps with level=1 or 2 and mode=wait or abort")
        self._do(self._sleep(exchange, mode == "abort"))

    def wake_up(self, exchange: Exchange) -> None:
        self._do(self._wake(exchange))

    def is_sleeping(self, exchange: Exchange) -> None:
        exchange.respond(200, b'{"is_sleeping":true}' if self.state != "awake" else b'{"is_sleeping":false}')

    # -- what they do -----------------------------------------------------------------------------------------

    async def _sleep(self, exchange: Exchange, abort: bool) -> None:
        async with self._turn:
            if self.state == "awake":
                self.state = "dozing"
                if abort:
                    self._abort()
                engine = self._engine()
                if engine is not None:
                    await asyncio.wrap_future(engine.forget_cached())  # once all that runs has ended
                self.state = "asleep"
        if not exchange.done:
            exchange.respond(200, b'{"status":"sleeping"}')

    async def _wake(self, exchange: Exchange) -> None:
        async with self._turn:
            if self.state == "asleep":
                self.state = "waking"
                await asyncio.sleep(self._wake_s)
                self.state = "awake"
                self.woken += 1
                held, self._held = self._held, []
                for waiting, begin in held:
                    if not waiting.done:
                        begin()
        if not exchange.done:
            exchange.respond(200, b'{"status":"awake"}')

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
