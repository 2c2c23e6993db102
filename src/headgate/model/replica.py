"""Defines a Replica, one place that can serve, and its Load."""

from dataclasses import dataclass, field, replace
from math import exp, inf
from pathlib import Path
from typing import Final

from headgate.model.pace import PrefillPace

RECENT_S: Final = 30.0
"""Seconds in which what a replica was given fades to 1/e: about as long as it keeps what nothing uses any more."""
ReplicaId = str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One replica's facts, from config or discovery."""

    id: ReplicaId
    """Name of the replica in records, figures and commands. By default host:port of its address."""
    url: str
    """http://host:port, https://…, or unix:/path/to.sock"""
    model: str | None = None
    """The model that the replica serves; None: whatever its engine says."""
    served_as: str | None = None
    """The engine's own name for that model, where several replicas use the same name for different models; None:
    `model`."""
    models: frozenset[str] = frozenset()
    """Names that the replica was found to serve, beside `model`: the adapters it has loaded. Empty: any."""
    kind: str | None = None
    """The engine's dialect (replica/dialects.py); None: detected from the replica's first answer."""
    priority: bool = False
    """The replica obeys a priority in the request. Others would refuse such a request."""
    slots: int | None = None
    """Maximum requests at once; None: found by watching the replica's latency."""
    token_limit: int | None = None
    """Maximum outstanding tokens; None: only requests are limited."""
    weight: float = 1.0
    """Relative share of the requests, for the routing algorithm `weighted` only."""
    lanes: frozenset[str] = frozenset()
    """Lanes that the replica serves; empty: all."""
    tags: dict[str, str] = field(default_factory=dict)
    """Labels of the replica's figures: quantization, gpu_type, version, …"""
    price: float | None = None
    """Price per hour, in observe.currency: among replicas that serve the same, the cheapest are filled first while they
    keep the promise; None: all that have no price count as equal, and as cheapest."""
    api_key_file: Path | None = None
    """File with the engine's API key, sent as `Authorization: Bearer …`; None: the engine needs no key."""
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    """Further headers of every request to the replica. They may be secret and are never shown."""
    ca: Path | None = None
    """PEM file with the authority that signed the replica's certificate; None: the system's authorities."""

    @property
    def public(self) -> "Replica":
        """The replica without its credentials, for whatever is written down."""
        if self.api_key_file is None and self.ca is None and not self.headers:
            return self
        return replace(self, api_key_file=None, headers={}, ca=None)

    @property
    def names(self) -> frozenset[str]:
        """Models that the replica may be asked for; empty: any."""
        return self.models if self.model is None else self.models | {self.model}


@dataclass(slots=True, eq=False)
class Load:
    """A replica's present work, counted here and not scraped: scrapes lag behind bursts. Only the book of replicas
    (policy/replicas/book.py) writes it."""

    replica: Replica
    limit: float
    """Maximum requests at once."""
    requests: int = 0
    """Requests at the replica. One that asks for several choices counts as that many, up to the limit."""
    prefill_tokens: int = 0
    """Prompt tokens sent for which no first token has come back."""
    silent_tokens: int = 0
    """Part of `prefill_tokens` whose requests another replica answered first. They count until this replica answers
    again: otherwise a stuck replica would look idle once its requests are taken away, and would be sent more."""
    decode_tokens: int = 0
    """Predicted output tokens still to come from requests past their first token."""
    usable: float = 1.0
    """Share of the replica's room that may be used. 0: ejected. Below 1: on probation or ramping."""
    ceiling: float = inf
    """Temporary maximum of requests at once, after the replica refused more; inf: it has not."""
    unreached: bool = False
    """The ceiling is there because the replica could not be reached: it is not usable until the next try."""
    memory_full: bool = False
    """The engine reports that its KV memory is full and that requests wait there: it gets one request at a time."""
    prefill_token_s: float = 0.0005
    """Measured seconds per prompt token that is computed, from `pace`; before the first few measurements a guess, the
    same for all replicas."""
    tpot_s: float = 0.025
    """Measured seconds between two output tokens of a request; before the first measurement a guess."""
    answer_token_s: float | None = None
    """Measured seconds per output token of an unstreamed answer, from its sending to its end; None: not yet
    measured."""
    cold: bool = True
    """The replica has not been seen to generate anything since it came into use."""
    sent_tokens: int = 0
    """Total prompt tokens ever sent to the replica."""
    recent_tokens: float = 0.0
    """Tokens that the replica was given to compute of late, answers included: what was given RECENT_S before
    `recent_at` counts for 1/e."""
    recent_at: float = 0.0
    pace: PrefillPace = field(default_factory=PrefillPace)
    """Fit of the time per prompt token."""
    joined_at: float = -inf
    """When the replica joined with these slots; -inf: unknown."""

    @property
    def id(self) -> ReplicaId:
        return self.replica.id

    def recent(self, now: float) -> float:
        """Tokens given of late, as of now."""
        return self.recent_tokens * exp(min(0.0, self.recent_at - now) / RECENT_S)

    @property
    def tokens(self) -> int:
        return self.prefill_tokens + self.decode_tokens

    @property
    def room(self) -> int:
        """Requests that the replica can take now."""
        limit = max(1.0, self.limit * self.usable) if self.usable > 0 else 0.0
        return max(0, int(min(limit, self.ceiling)) - self.requests)

    @property
    def use(self) -> float:
        """Share of the replica's room in use, from 0; above 1 where it has more than its room."""
        return self.requests / max(1.0, self.limit * max(self.usable, 1e-9))
