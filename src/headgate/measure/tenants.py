"""Counts each tenant's tokens and times to first token, for as many tenants as labels may have values.

Further tenants are counted as `other`. tenant_availability.py counts which tenants get answers.
"""

from typing import Final

from headgate.metrics.histogram import Edges, Histogram
from headgate.model.labels import Cap
from headgate.model.outcome import Outcome
from headgate.model.record import Record

UNAUTHORIZED: Final = Outcome.UNAUTHORIZED
"""The tenant of a request with this outcome is unknown."""


class TenantFigures:
    __slots__ = ("output_tokens", "prompt_tokens", "ttft")

    def __init__(self, edges: Edges) -> None:
        self.ttft = Histogram(edges)
        self.prompt_tokens = 0
        self.output_tokens = 0


class Tenants:
    def __init__(self, most: int, edges: Edges) -> None:
        self.known: dict[str, TenantFigures] = {}
        self._cap = Cap(most)
        self._edges = edges

    def take(self, record: Record) -> None:
        if not record.tenant or record.outcome is UNAUTHORIZED:
            return
        counted = self.known.get(record.tenant)
        if counted is None:
            counted = self._new(record.tenant)
        counted.prompt_tokens += record.prompt_tokens
        counted.output_tokens += record.output_tokens
        ttft_s = record.ttft_s
        if ttft_s is not None:
            counted.ttft.add(ttft_s)

    def _new(self, tenant: str) -> TenantFigures:
        name = self._cap.of(tenant)
        counted = self.known.get(name)
        if counted is None:
            counted = self.known[name] = TenantFigures(self._edges)
        return counted
