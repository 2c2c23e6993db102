"""Writes /metrics: every figure, by the names and labels that dashboards and alerts rely on.

The families stand beside what writes them: request_metrics.py, promise_metrics.py, fleet_metrics.py, and here those of
the process and its machine.
"""

from collections.abc import Collection
from typing import Final, Protocol

from headgate.config.gateway import ObserveConfig
from headgate.gateway.account import Account
from headgate.measure.conditions import Conditions
from headgate.measure.figures import Figures
from headgate.measure.gpu import Gpus
from headgate.measure.pulse import Pulse
from headgate.measure.tenant_availability import TenantAvailability
from headgate.metrics.exposition import Exposition, Family
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.promises.slo import Slo
from headgate.publish.fleet_metrics import (
    ProbedReplica,
    write_conditions,
    write_cost,
    write_loads,
    write_pools,
    write_queues,
    write_reported,
    write_shared,
)
from headgate.publish.promise_metrics import write_answers, write_each, write_promises, write_tenants
from headgate.publish.request_metrics import write_counts, write_lanes, write_requests

LOOP_LAG: Final = Family("headgate_loop_lag_seconds", "gauge", "Event loop's lateness in the last minute", "percentile")
GC_SECONDS: Final = Family(
    "headgate_gc_pause_seconds_total", "counter", "Time the garbage collector stopped everything"
)
GC_PAUSES: Final = Family("headgate_gc_pauses_total", "counter", "Garbage collections")
GPU_USE: Final = Family("headgate_gpu_utilisation", "gauge", "Share of time it was computing", "gpu")
GPU_USED: Final = Family("headgate_gpu_memory_used_bytes", "gauge", "Memory in use", "gpu")
GPU_TOTAL: Final = Family("headgate_gpu_memory_total_bytes", "gauge", "Memory it has", "gpu")


class ServingGateway(Protocol):
    """The part of gateway/gateway.py that is used here."""

    account: Account

    @property
    def dispatcher(self) -> Dispatcher: ...


class Metrics:
    def __init__(
        self,
        gateway: ServingGateway,
        figures: Figures,
        pulse: Pulse,
        observe: ObserveConfig,
        watches: Collection[ProbedReplica],
        gpus: Gpus | None = None,
        slo: Slo | None = None,
        conditions: Conditions | None = None,
        tenants: TenantAvailability | None = None,
    ) -> None:
        self._gateway = gateway
        self._figures = figures
        self._pulse = pulse
        self._observe = observe
        self._watches = watches
        self._gpus = gpus
        self._slo = slo
        self._conditions = conditions or Conditions(gateway.dispatcher)
        self._tenants = tenants
        self._page = Exposition()

    def text(self, open_metrics: bool = False) -> bytes:
        """A whole page of exposition.CONTENT_TYPE, or OPEN_CONTENT_TYPE. The caller must have handed all closed records
        to the figures before."""
        page, now = self._page, self._pulse.clock()
        view, account = self._gateway.dispatcher.view(now), self._gateway.account
        page.open = open_metrics
        if self._observe.instruments:
            write_requests(page, self._figures)
            write_lanes(page, self._figures, now)
            write_each(page, self._figures.promised)
            if self._slo is not None:
                write_promises(page, self._slo, now)
        else:
            write_counts(page, account)
        write_conditions(page, view, self._conditions)
        write_answers(page, account, view.lanes)
        if self._tenants is not None:
            write_tenants(page, self._tenants, now)
        write_queues(page, view)
        write_loads(page, view)
        write_pools(page, self._conditions.pools(now))
        write_reported(page, self._watches)
        write_cost(page, self._figures, self._observe)
        write_shared(page, view)
        write_process(page, self._pulse)
        if self._gpus is not None:
            write_gpus(page, self._gpus)
        return page.render()


def write_process(page: Exposition, pulse: Pulse) -> None:
    for label, value in (
        ("50", pulse.lag.quantile(0.5)),
        ("99", pulse.lag.quantile(0.99)),
        ("100", pulse.lag.max),
    ):
        if value is not None:
            page.sample(LOOP_LAG, (label,), value)
    page.sample(GC_SECONDS, (), pulse.gc_pause_s)
    page.sample(GC_PAUSES, (), pulse.gc_pauses)


def write_gpus(page: Exposition, gpus: Gpus) -> None:
    for gpu in gpus.read():
        if gpu.utilisation is not None:
            page.sample(GPU_USE, (gpu.name,), gpu.utilisation)
        page.sample(GPU_USED, (gpu.name,), gpu.memory_used)
        page.sample(GPU_TOTAL, (gpu.name,), gpu.memory_total)
