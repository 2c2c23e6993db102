"""Chooses which line of which batch is sent next: among tenants by what they were served, within the pace of its model
(policy/tenants/spare_room.py), and within what the tenant's own limits leave.

A line counts against its tenant's limits per minute as any request does. Lines stay below half of each limit, and of
the tenant's concurrency, so that a batch never keeps its own tenant's clients out.
"""

from collections.abc import Collection
from typing import Final

import msgspec

from headgate.batches.call import LANE, LineCall, in_batch
from headgate.batches.jobs import Waiting
from headgate.batches.run import BatchRun
from headgate.config.gateway import Tenant
from headgate.gateway.gateway import Gateway
from headgate.policy.tenants.spare_room import LinePace, SpareRoom

LEFT: Final = 0.5
"""Share of each of its limits that a tenant's lines leave to its other requests."""
MOST_LINES: Final = 4096
"""Lines under way in all: each has its body in memory, and will have its answer there."""
MOST_NAMES: Final = 256
"""Names of models that are remembered; the oldest is forgotten."""


class _Body(msgspec.Struct):
    model: str = ""


class _Line(msgspec.Struct):
    body: _Body


_line = msgspec.json.Decoder(_Line).decode


class Pacing:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._rooms: dict[str | None, SpareRoom] = {}
        """By model that serves."""
        self._means: dict[str, str] = {}
        """The model that served a name last."""
        self._served: dict[str, float] = {}
        """By tenant with lines to send: tokens that its lines had, for its weight."""
        self._tenants: dict[str, tuple[Tenant, Tenant]] = {}
        """By name: a tenant of the config, and the same as whom its lines run."""

    # -- what is put back ----------------------------------------------------------------------------------------

    def to_end(self, runs: Collection[BatchRun], now: float) -> list[tuple[BatchRun, int]]:
        """Lines that are in the way of other lanes' requests: the youngest, which lose least."""
        under_way: dict[str, list[tuple[float, BatchRun, int]]] = {}
        for run in runs:
            for number, (call, _) in run.calls.items():
                model = call.model if call.at_replica else None
                if model is not None:
                    under_way.setdefault(model, []).append((call.sent_at, run, number))
        found: list[tuple[BatchRun, int]] = []
        for model, lines in under_way.items():
            end = self._pace(model, now).end
            if end:
                lines.sort(key=lambda one: -one[0])
                found += [(run, number) for _, run, number in lines[:end]]
        return found

    # -- what is sent --------------------------------------------------------------------------------------------

    def next(self, runs: Collection[BatchRun], now: float) -> tuple[BatchRun, Waiting, Tenant] | None:
        """The line to be sent now, and as whom. None: none may go."""
        if sum(len(run.calls) for run in runs) >= MOST_LINES or not self._gateway.dispatcher.any_usable():
            return None
        waiting = {run.tenant for run in runs if run.ready or run.calls}
        self._welcome(waiting)
        for name in sorted(waiting, key=lambda tenant: (self._served[tenant], tenant)):
            own = [run for run in runs if run.tenant == name]
            found = self._next_of(name, own, now)
            if found is not None:
                return found
        return None

    def _welcome(self, waiting: set[str]) -> None:
        """A tenant that comes back has not saved up turns."""
        least = min((tokens for name, tokens in self._served.items() if name in waiting), default=0.0)
        self._served = {name: self._served.get(name, least) for name in waiting}

    def _next_of(self, name: str, own: list[BatchRun], now: float) -> tuple[BatchRun, Waiting, Tenant] | None:
        tenant = self._tenant(name)
        for run in own:
            line = run.next_line(now)
            if line is None:
                continue
            if tenant is None:
                run.reason = f"tenant {name!r} is not served any more"
                continue
            run.reason = self._held(tenant, own, line, now)
            if not run.reason:
                return run, line, tenant
        return None

    def _held(self, tenant: Tenant, own: list[BatchRun], line: Waiting, now: float) -> str:
        """Why this line may not go now; empty: it may."""
        under_way = sum(len(run.calls) for run in own)
        if tenant.concurrency is not None and under_way >= max(1, int(tenant.concurrency * LEFT)):
            return f"tenant {tenant.name!r} has half of its concurrency in batches"
        rates = self._gateway.dispatcher.rates(tenant.name, now)
        if rates is not None:
            for rate in (rates.requests, rates.tokens):
                if rate is not None and rate.remaining < LEFT * rate.limit:
                    return f"half of a limit per minute of tenant {tenant.name!r} is left to its other requests"
        name = model_in(line.data)
        model = self._means.get(name)
        if model is None:  # its first line finds out what the name stands for
            return "the first line for this model has not begun" if under_way else ""
        pace = self._pace(model, now)
        return "" if pace.send else pace.reason

    def _pace(self, model: str, now: float) -> LinePace:
        room = self._rooms.get(model)
        if room is None:
            if len(self._rooms) >= MOST_NAMES:
                del self._rooms[next(iter(self._rooms))]
            room = self._rooms[model] = SpareRoom()
        return room.look(self._gateway.dispatcher.spare(model, LANE), now)

    def _tenant(self, name: str) -> Tenant | None:
        known = self._gateway.acceptor.named(name)
        if known is None:
            return None
        made = self._tenants.get(name)
        if made is None or made[0] is not known:
            if len(self._tenants) >= MOST_NAMES:
                self._tenants.clear()
            made = self._tenants[name] = (known, in_batch(known))
        return made[1]

    # -- what became of it ---------------------------------------------------------------------------------------

    def sent(self, line: Waiting, call: LineCall) -> None:
        """Remembers which model serves the name that a line asks for."""
        model, name = call.model, model_in(line.data)
        if model is not None and self._means.get(name) != model:
            if len(self._means) >= MOST_NAMES:
                del self._means[next(iter(self._means))]
            self._means[name] = model

    def served(self, tenant: str, tokens: int) -> None:
        known = self._tenant(tenant)
        if tenant in self._served:
            self._served[tenant] += tokens / (known.weight if known is not None else 1.0)


def model_in(data: bytes) -> str:
    """The model that a line asks for; empty: it names none."""
    try:
        return _line(data).body.model
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
