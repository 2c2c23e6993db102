"""Runs a gateway as several processes: a brain that decides, and workers that serve the clients."""

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop

from headgate.config.gateway import GatewayConfig
from headgate.gateway.worker.brain import Brain
from headgate.logs import LogOptions, logging_to
from headgate.model.clock import Clock, monotonic
from headgate.progress import Progress
from headgate.wiring.change import Reload
from headgate.wiring.common import tls_of
from headgate.wiring.family import BRAIN, Place, ProcessTree, Site, meeting
from headgate.wiring.gateway import LOGS, GatewayParts, prepare_process, serve_gateway
from headgate.wiring.worker import serve_worker

LEFT_WITHIN_S = 3.0
"""Seconds beyond listen.drain_s within which workers have left."""


def run_several(
    config: GatewayConfig,
    progress: Progress,
    reload: Reload | None = None,
    event_log: Path | None = None,
    watched: Path | None = None,
    logs: LogOptions = LOGS,
) -> None:
    """Runs a gateway with several workers until SIGTERM or SIGINT. Arguments as of `run_gateway`. It returns in each
    process, when that one ends."""
    tls_of(config.listen)  # says what is wrong with it before anything starts
    with meeting(config.listen, config.listen.workers) as site:
        place = ProcessTree(site.workers, config.listen.drain_s, monotonic).run()
        if place is None:
            return
        prepare_process()
        with logging_to(logs) as writer:
            lines = writer if logs.access else None
            if place.number == BRAIN:
                shown = progress if place.first else Progress(monotonic, banner=False)
                log = event_log if place.first or event_log is None else unused(event_log)
                desk = WorkersDesk(site, place)
                uvloop.run(serve_gateway(config, shown, reload, log, watched, monotonic, lines, desk))
            else:
                uvloop.run(serve_worker(site, place, monotonic, lines))


def unused(path: Path) -> Path:
    """A name for the event log of a brain that was started again: the log of the one before stays."""
    number = 2
    while (other := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return other


class WorkersDesk:
    """Where the workers of one gateway come to."""

    def __init__(self, site: Site, place: Place) -> None:
        self._site = site
        self._place = place
        self._brain: Brain | None = None

    async def open(self, parts: GatewayParts, stack: AsyncExitStack, stop: asyncio.Event, clock: Clock) -> str:
        """Lets workers connect, and returns the gateway's address."""
        asyncio.get_running_loop().add_reader(self._place.parent_gone, stop.set)
        self._brain = brain = Brain(parts.gateway, parts.roster.catalog, parts.config, clock, parts.keep_prompt)
        parts.change.tell(brain.take)
        parts.ledger.count_more(brain.held)
        self._site.clear()
        await brain.listen(self._site.brain)
        stack.callback(brain.close)
        await parts.http.listen_unix(self._site.http)
        parts.http.say_close()  # a client's next request may be a worker's
        return self._site.where

    async def until_served(self) -> None:
        """Waits until all workers accept clients."""
        assert self._brain is not None
        await self._brain.until_listening(self._site.workers)
        os.write(self._place.ready, b"r")

    async def until_left(self, drain_s: float) -> None:
        """Waits until no worker is left."""
        assert self._brain is not None
        await self._brain.until_gone(drain_s + LEFT_WITHIN_S)
