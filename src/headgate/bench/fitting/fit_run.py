"""Fits a profile to a running server or to a table of timings, and says how good the fit is."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import uvloop
from rich.console import Console

from headgate.bench.asker import LIMITS, address
from headgate.bench.fitting.engine_probe import EngineProbe, ProbeOptions
from headgate.bench.fitting.timing_table import read_table
from headgate.bench.options import read_keys
from headgate.machine.observed import FittedProfile, TooFewObservations, fit_observed
from headgate.machine.profile import Profile
from headgate.model.clock import monotonic
from headgate.model.dialect import dialect_of_kind
from headgate.model.errors import ReplicaFailed, UsageError
from headgate.replica.description import MOST_BATCH, NOTHING, Description, read_description
from headgate.replica.detect import detect, read_cards
from headgate.replica.gauges import read_gauges, text_of_gauges
from headgate.replica.http import Connections, Once, request_head

ASK_S = 5.0
DISTURBED = 0.15
"""Mean relative error from which on a fit is not to be trusted."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What was said of an engine's sizes on the command line. None: nothing."""

    name: str
    chunk: int | None = None
    slots: int | None = None
    kv_tokens: int | None = None

    def of(self, profile: Profile, said: Description = NOTHING, context: int | None = None) -> Profile:
        """The profile with these sizes, else those that its server says, else its own."""
        ranks = said.ranks or 1
        kv_tokens = self.kv_tokens or said.kv_tokens or profile.kv_tokens
        chunk = min(self.chunk or said.step_tokens or profile.chunk_limit, kv_tokens)
        slots = self.slots or (said.batch // ranks if said.batch else profile.slots)
        return replace(
            profile,
            name=self.name,
            slots=max(1, slots),
            kv_tokens=kv_tokens,
            context=min(context or profile.context, kv_tokens),
            chunk_limit=chunk,
            step_tokens=profile.step_tokens if chunk == profile.chunk_limit else max(chunk, slots),
        )


def fit_server(options: ProbeOptions, sizes: Sizes, err: Console | None = None) -> FittedProfile:
    """Raises StartupError."""
    say = _sayer(err)

    async def measure() -> FittedProfile:
        said, context, model = await _asked(options)
        of = replace(sizes.of(options.of, said, context), model=model or options.of.model)
        return await EngineProbe(replace(options, of=of), say).run()

    fitted = uvloop.run(measure())
    _tell(fitted, say)
    return fitted


async def _asked(options: ProbeOptions) -> tuple[Description, int | None, str]:
    """What the server says of its sizes, the longest sequence that it takes, and the name of its model."""
    connections = Connections(address(options.url), clock=monotonic, limits=LIMITS)
    keys = read_keys(options.keys, os.environ)
    headers = (("authorization", f"Bearer {keys['']}"),) if keys.get("") else ()

    async def get(path: str) -> tuple[int, bytes]:
        once = Once(asyncio.get_running_loop().create_future())
        call = connections.send(request_head(path, connections.host, headers, "GET"), b"", once)
        try:
            async with asyncio.timeout(ASK_S):
                return await once.answer
        finally:
            call.cancel()

    try:
        status, body = await get("/v1/models")
        cards = read_cards(body) if status == 200 else []
        dialect = dialect_of_kind(await detect(cards, get))
        said = NOTHING
        for path in dialect.about:
            status, body = await get(path)
            if status == 200:
                said = read_description(dialect, body)
                break
        if dialect.metrics is not None and said.batch is None:
            status, body = await get(dialect.metrics)
            batch = read_gauges(dialect.kind, text_of_gauges(body)).get("batch_limit") if status == 200 else None
            said = replace(said, batch=int(batch) if batch is not None and 1 <= batch <= MOST_BATCH else None)
    except (ReplicaFailed, TimeoutError, OSError):
        return NOTHING, None, ""  # whether it answers at all is found, and said, by the first request
    finally:
        connections.close()
    asked = [card for card in cards if options.model in (None, card.id)]
    return said, asked[0].context if asked else None, asked[0].id if asked else ""


def fit_table(table: Path, of: Profile, err: Console | None = None) -> FittedProfile:
    """Raises UsageError."""
    try:
        fitted = fit_observed(read_table(table, of.chunk_limit), of)
    except TooFewObservations as error:
        raise UsageError(f"{table}: {error}") from None
    _tell(fitted, _sayer(err))
    return fitted


def _sayer(err: Console | None) -> Callable[[str], None]:
    console = err or Console(stderr=True, highlight=False)
    return lambda text: console.print(f"  {text}", markup=False, soft_wrap=True)


def _tell(fitted: FittedProfile, say: Callable[[str], None]) -> None:
    off = sorted(abs(error) for error in fitted.errors)
    most = off[int(0.9 * (len(off) - 1))]
    say(
        f"{len(off)} observations, mean error {fitted.error:.1%}, nine of ten within {most:.1%}; "
        f"left out: {fitted.request_s * 1e3:.1f} ms that the server adds to each first token"
    )
    if fitted.error > DISTURBED:
        say(
            f"do not trust it: a mean error above {DISTURBED:.0%} says that other programs or clients disturbed the "
            "engine; measure it again while it is quiet"
        )
