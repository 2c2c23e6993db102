"""Connects batches to a gateway: their store, their routes, and what runs them."""

import asyncio
import logging
import os
from contextlib import AsyncExitStack
from pathlib import Path

from headgate.batches.admin import BatchAdmin
from headgate.batches.call import LANE
from headgate.batches.desk import Desk
from headgate.batches.jobs import Jobs
from headgate.batches.routes import BatchRoutes
from headgate.batches.runner import BatchRunner
from headgate.batches.shelf import Shelf
from headgate.batches.store import BatchStore
from headgate.batches.uploads import Uploads
from headgate.config.gateway import GatewayConfig
from headgate.config.listen import ListenConfig
from headgate.gateway.gateway import Gateway
from headgate.model.clock import Clock, wall
from headgate.model.errors import StartupError
from headgate.surface.access import AdminAccess
from headgate.wire.router import Routes

log = logging.getLogger(__name__)


class BatchWiring:
    def __init__(self, config: GatewayConfig, gateway: Gateway, access: AdminAccess, clock: Clock) -> None:
        """Built within the running loop."""
        batches = config.batches
        self._named = batches.folder is not None
        self._folder = batches.folder or default_folder(config.listen)
        self._off = _off(config, self._folder)
        store = BatchStore(self._folder or Path(os.devnull))
        self._desk = desk = Desk(store)
        self._shelf, self._jobs = shelf, jobs = Shelf(store, batches), Jobs(store, batches)
        self._uploads = uploads = Uploads(store, batches.file_bytes)
        self.runner = runner = BatchRunner(gateway, desk, jobs, shelf, batches, clock, wall)
        known = gateway.acceptor.known
        self.api = BatchRoutes(known, desk, shelf, jobs, uploads, batches, wall, runner.wake)
        self.admin = BatchAdmin(desk, jobs, runner, access, wall)
        self._say(self._off or "the folder is not open yet")

    def routes(self) -> Routes:
        return {**self.api.routes(), **self.admin.routes()}

    async def start(self, stack: AsyncExitStack) -> list[asyncio.Future[None]]:
        """Opens the folder, and goes on with the batches in it. Raises StartupError where the config names a folder
        that can't be used; without one that is logged, and batches are off."""
        stack.push_async_callback(self._close)
        if self._off:
            return []
        trouble = await self._desk.open()
        if trouble and self._named:
            raise StartupError(f"batches.folder: {trouble}")
        self._say(trouble)
        if trouble:
            log.warning("batches are off: %s", trouble)
            return []
        return [asyncio.get_running_loop().create_task(self.runner.run())]

    def _say(self, why: str) -> None:
        """Opens the routes, or says why they are closed."""
        self.api.close_for(why)
        self.admin.close_for(why)

    def drain(self) -> None:
        """Sends no more lines, and puts back those under way: another start goes on with them."""
        self.runner.stop()

    async def _close(self) -> None:
        self.api.close()
        if not self.api.closed:
            await self.runner.close()
        await self._desk.close()
        self._uploads.close()


def default_folder(listen: ListenConfig) -> Path | None:
    """Where batches are kept if the config does not say. By port: another gateway of this user has other models. None:
    a restart would not find it again."""
    if listen.uds is not None or listen.port == 0:
        return None
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        home = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    except RuntimeError:  # this user has no home
        return None
    return home / "headgate" / f"batches-{listen.port}"


def _off(config: GatewayConfig, folder: Path | None) -> str:
    """Why batches are off; empty: they are on."""
    if not config.batches.enabled:
        return "batches.enabled is false"
    if folder is None:
        return "there is no folder for them: name one (batches.folder)"
    if LANE not in {lane.name for lane in config.lanes}:
        return f"there is no lane {LANE!r}"
    return ""
