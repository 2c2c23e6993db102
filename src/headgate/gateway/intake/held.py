"""Bounds the bytes of long bodies held for requests that were taken and have not ended, waiting or running.

Short bodies are not counted: the lanes' queues and the connections bound them. Where tenants have keys, a tenant that
already holds a body may have another one if all its bodies together fit into the bytes that are free: about half of all
bytes if no other tenant holds any, about a third beside another that holds as much.
"""

from typing import Final

from headgate.model.errors import Refused
from headgate.model.outcome import Outcome
from headgate.wire.exchange import Exchange

MOST_BYTES: Final = 256 * 1024 * 1024
RETRY_S: Final = 5.0


class HeldBodies:
    def __init__(self, most: int = MOST_BYTES) -> None:
        self.most = most
        self.total = 0
        self._by_tenant: dict[str, int] = {}
        self._of: dict[Exchange, tuple[str, int]] = {}

    def __len__(self) -> int:
        return len(self._of)

    def take(self, exchange: Exchange, tenant: str, size: int, several: bool) -> None:
        """Counts the body of an exchange. Raises Refused beyond a bound. `several`: whether tenants share the bytes."""
        own, free = self._by_tenant.get(tenant, 0), self.most - self.total
        if size > free:
            raise _refused(f"{self.total} bytes of long bodies are held, and limits.held_bytes is {self.most}", size)
        if several and own and own + size > free:
            raise _refused(f"tenant {tenant!r} holds {own} bytes of long bodies, and {free} are free for all", size)
        self._of[exchange] = (tenant, size)
        self._by_tenant[tenant] = own + size
        self.total += size

    def drop(self, exchange: Exchange) -> None:
        """Releases the bytes of an exchange that has ended, if it holds any."""
        held = self._of.pop(exchange, None)
        if held is None:
            return
        tenant, size = held
        self.total -= size
        self._by_tenant[tenant] -= size
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant]


def _refused(why: str, size: int) -> Refused:
    error = Refused(
        f"no room for a body of {size} bytes: {why}; come back in {RETRY_S:g} s, when others have ended, or send one"
        " below 64 KiB",
        Outcome.QUEUE_FULL,
        RETRY_S,
    )
    error.code = "too_many_bodies"
    return error
