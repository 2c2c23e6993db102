"""Answers /health/deep: 200 only if the engine generates a token. A model that answers /health but can't generate is
not healthy."""

import asyncio
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any

import msgspec

from headgate.engine.engine import Engine
from headgate.engine.intake import Intake
from headgate.model.clock import Clock
from headgate.model.errors import EngineFailed, QueueFull, ServeError
from headgate.model.sequence import LOWEST_PRIORITY
from headgate.wire.exchange import Exchange

DEEP_CHECK_S = 10.0
"""Seconds that a deep check waits for a sign that the model computes."""
FRESH_S = 1.0
"""Maximum age, in seconds, of a running stream's token that proves that the engine generates."""

Generate = Callable[[list[int], bool, int], Coroutine[Any, Any, None]]
"""Generates one output token for a prompt; whether to pin it, and its priority."""


class DeepCheck:
    """Concurrent checks share one generation."""

    def __init__(self, clock: Clock, generate: Generate, ready: Callable[[], tuple[Engine, Intake]]) -> None:
        """`ready` raises a ServeError while the engine can't serve."""
        self._clock = clock
        self._generate = generate
        self._ready = ready
        self._loop = asyncio.get_running_loop()
        self._spoke_at = -inf
        """When a client's sequence last got a token."""
        self._spoken: asyncio.Future[None] | None = None
        """Resolves with the next such token; None: no check is running."""
        self._checking: asyncio.Task[str] | None = None

    def spoke(self, now: float) -> None:
        """A client's sequence got a token."""
        self._spoke_at = now
        if self._spoken is not None and not self._spoken.done():
            self._spoken.set_result(None)

    def answer(self, exchange: Exchange) -> None:
        if self._checking is None:
            self._checking = self._loop.create_task(self._check())

        def report(done: asyncio.Task[str]) -> None:
            self._checking = None
            if exchange.done or done.cancelled():
                return
            error = done.exception()
            if error is None:
                exchange.respond(200, msgspec.json.encode({"status": "generates", "proof": done.result()}))
            else:
                exchange.fail(error if isinstance(error, ServeError) else EngineFailed(f"no token: {error!r}"))

        self._checking.add_done_callback(report)

    async def _check(self) -> str:
        """Returns what proves that the engine generates. A check takes nothing from running streams: their tokens are
        the proof if they come, and the check's own sequence has the lowest priority, so that it only gets free
        capacity."""
        engine, _ = self._ready()
        if self._clock() - self._spoke_at <= FRESH_S:
            return "a token of a running stream"
        prefilled = engine.batcher.counts.prefilled
        spoken = self._spoken = self._loop.create_future()
        own = self._loop.create_task(self._generate([1, 2, 3], False, LOWEST_PRIORITY))
        try:
            async with asyncio.timeout(DEEP_CHECK_S):
                await asyncio.wait((own, spoken), return_when=asyncio.FIRST_COMPLETED)
                if own.done() and isinstance(own.exception(), QueueFull):
                    await spoken  # the queue is full; a running sequence's token is proof enough
        except TimeoutError:
            if engine.batcher.counts.prefilled == prefilled:  # long prompts may keep every slot from its first token
                raise EngineFailed(f"no token within {DEEP_CHECK_S:g} s") from None
            return "prompts that are being computed"
        finally:
            self._spoken = None
            own.cancel()
        if spoken.done():
            return "a token of a running stream"
        own.result()
        return "a token of its own"
