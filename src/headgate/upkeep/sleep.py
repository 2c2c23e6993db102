"""Puts engines to sleep and wakes them, each in the way of its kind (model/dialect.py).

An engine is asked, not assumed: one that says whether it sleeps is believed over the answer to the order. Calls about
one replica go one after the other, so that an order to wake is sent only when the order to sleep is over. An engine
that never slept is not told to wake: that would end SGLang.
"""

import asyncio
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from headgate.model.dialect import Dialect, SleepCalls
from headgate.model.errors import ReplicaFailed
from headgate.model.labels import plain
from headgate.replica.http import Connections
from headgate.replica.openai import quoted, read_error

SLEEP_LIMIT_S: Final = 300.0
"""Maximum seconds that an engine gets to end what other clients run there, and to fall asleep."""
WAKE_LIMIT_S: Final = 60.0
"""Maximum seconds that a replica found asleep when it joined gets to wake up."""
ASK_LIMIT_S: Final = 2.0
LOOK_EVERY_S: Final = 0.02
"""Seconds between two questions whether an engine is awake."""
COUNTS: Final = ("num_running_reqs", "num_waiting_reqs", "num_total_reqs", "num_reqs")
"""Names under which an engine counts the requests that it has."""


class Rest(Enum):
    """What came of an order to sleep."""

    ASLEEP = "asleep"
    AWAKE = "awake"
    """It did not take the order, and is as it was."""
    UNKNOWN = "unknown"
    """It may be asleep, awake or broken."""


class Rested(NamedTuple):
    rest: Rest
    why: str = ""
    """Why it is not asleep."""


class SleepSwitch:
    """Whether one replica sleeps, as far as this gateway knows, and the way to change that."""

    def __init__(self) -> None:
        self.asleep = False
        """It was told to sleep: it is asked whether it lives, and to generate nothing."""
        self._turn = asyncio.Lock()

    async def fall_asleep(self, dialect: Dialect, connections: Connections, limit_s: float = SLEEP_LIMIT_S) -> Rested:
        """Puts a replica to sleep that is given no requests by this gateway."""
        calls = dialect.sleeps
        if calls is None:
            return Rested(Rest.AWAKE, f"{dialect.name} has no sleep mode")
        async with self._turn:
            self.asleep = True  # from now on it may be
            busy = "" if calls.requests is None else await _busy(connections, calls.requests)
            if busy:
                self.asleep = False
                return Rested(Rest.AWAKE, busy)
            try:
                status, said = await connections.ask("POST", *calls.sleep, limit_s)
            except (ReplicaFailed, OSError) as error:
                return Rested(Rest.UNKNOWN, str(error))
            if status == 200 and await is_asleep(calls, connections) is not False:
                return Rested(Rest.ASLEEP)
            if status >= 500:
                return Rested(Rest.UNKNOWN, _told(calls, calls.sleep[0], status, said))
            self.asleep = False
            return Rested(Rest.AWAKE, _told(calls, calls.sleep[0], status, said))

    async def wake_up(self, dialect: Dialect, connections: Connections, limit_s: float) -> str:
        """Wakes a replica. Returns why it did not wake up; empty: it is awake."""
        async with self._turn:
            calls = dialect.sleeps
            if calls is None or not self.asleep:
                return ""
            try:
                async with asyncio.timeout(limit_s):
                    status, said = await connections.ask("POST", *calls.wake, limit_s)
                    if status != 200:
                        return _told(calls, calls.wake[0], status, said)
                    while True:
                        if calls.asked is None or await is_asleep(calls, connections) is False:
                            break
                        await asyncio.sleep(LOOK_EVERY_S)
            except (ReplicaFailed, OSError) as error:
                # A timeout is an OSError without words.
                return str(error) or f"it still says that it sleeps after {plain(limit_s, 6)} s"
            self.asleep = False
            return ""

    async def wake_if_asleep(self, dialect: Dialect, connections: Connections) -> str:
        """Wakes a replica that joins and says that it sleeps: it may have been put to sleep before this gateway ran.
        Returns why it did not wake up; empty: it is awake."""
        if dialect.sleeps is None or not await is_asleep(dialect.sleeps, connections):
            return ""
        self.asleep = True
        return await self.wake_up(dialect, connections, WAKE_LIMIT_S)


async def is_asleep(calls: SleepCalls, connections: Connections) -> bool | None:
    """Whether a replica says that it sleeps. None: its kind can't be asked, or it does not answer."""
    if calls.asked is None:
        return None
    try:
        status, said = await connections.get(calls.asked, ASK_LIMIT_S)
        answer = msgspec.json.decode(said) if status == 200 else None
    except (ReplicaFailed, OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    found = answer.get("is_sleeping") if isinstance(answer, dict) else None
    return found if isinstance(found, bool) else None


async def _busy(connections: Connections, path: str) -> str:
    """Why the engine must not be told to sleep now; empty: it has no request."""
    try:
        status, said = await connections.get(path, ASK_LIMIT_S)
        answer = msgspec.json.decode(said) if status == 200 else None
    except (ReplicaFailed, OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return f"{path} does not say whether it has requests: {error}"
    counts = _counts(answer)
    if not counts:
        return f"{path} does not say whether it has requests: it answered {status}"
    return f"it has requests of other clients: {path} counts {max(counts):g}" if any(counts) else ""


def _counts(answer: object) -> list[float]:
    """The requests that an answer counts, at any of the names, one level below a list or a key at most."""
    found: list[float] = []
    inner = answer.get("loads", [answer]) if isinstance(answer, dict) else answer
    for one in inner if isinstance(inner, list) else ():
        values = [one.get(name) for name in COUNTS] if isinstance(one, dict) else []
        found += [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    return found


def _told(calls: SleepCalls, path: str, status: int, said: bytes) -> str:
    if status == 404:
        return f"it has no {path}: {calls.hint}"
    if status == 200:
        return f"{path} was answered, and it says that it does not sleep"
    return f"{path} answered {status}: {quoted(read_error(said))}"[:300]
