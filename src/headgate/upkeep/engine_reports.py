"""Asks an engine what it says of itself: its load every second, and its description when it is met and with each deep
check, so that a restart with other settings is noticed. What the dispatcher decides by is handed on when it changes."""

from collections.abc import Callable

from headgate.model.dialect import Dialect
from headgate.model.errors import ReplicaFailed
from headgate.model.event import Event, Reported
from headgate.model.replica import Replica
from headgate.replica.description import MOST_BATCH, NOTHING, Description, rank_of, read_description
from headgate.replica.gauges import read_gauges, text_of_gauges
from headgate.replica.http import Connections

TIMEOUT_S = 2.0
ABOUT_TIMEOUT_S = 10.0
"""Seconds for a description of a replica in use, for which some engines look at the machine first."""


class EngineReports:
    def __init__(self, replica: Replica, connections: Connections, tell: Callable[[Event], object]) -> None:
        self.description: Description = NOTHING
        self._connections = connections
        self._tell = tell
        self._headers = replica.headers
        self._told = Reported(replica.id)

    async def ask_load(self, dialect: Dialect) -> dict[str, float]:
        """What the engine reports of its load, and describes; empty: nothing."""
        said: dict[str, float] = {}
        if dialect.metrics is not None:
            rank = rank_of(dialect, self._headers)
            status, body = await self._get(dialect.metrics, TIMEOUT_S)
            said = read_gauges(dialect.kind, text_of_gauges(body), rank) if status == 200 else {}
        return self._hand_on(self.description.gauges | said)

    async def ask_about(self, dialect: Dialect, within_s: float = ABOUT_TIMEOUT_S) -> None:
        """Has the engine describe itself. What it said before holds while it does not answer."""
        for path in dialect.about:
            status, body = await self._get(path, within_s)
            if status == 200:
                self.description = read_description(dialect, body, rank_of(dialect, self._headers))
                self._hand_on(self.description.gauges)
            if status in (0, 200):
                return

    def _hand_on(self, said: dict[str, float]) -> dict[str, float]:
        batch, kv_ratio = said.get("batch_limit"), said.get("kv_ratio")
        found = Reported(
            self._told.replica_id,
            int(batch) if batch is not None and 1.0 <= batch <= MOST_BATCH else self._told.batch,
            None if kv_ratio is None else round(kv_ratio, 2),
            said.get("waiting"),
        )
        if found != self._told:
            self._told = found
            self._tell(found)
        return said

    async def _get(self, path: str, within_s: float) -> tuple[int, bytes]:
        """Status and body; status 0: no answer."""
        try:
            return await self._connections.get(path, within_s)
        except (ReplicaFailed, TimeoutError, OSError):
            return 0, b""
