"""One place that can serve, and what is known of it."""

from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from headgate.model.pace import PrefillPace

ReplicaId = str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """Facts from config or discovery."""

    id: ReplicaId
    url: str
    """http://host:port, https://…, or unix:/path/to.sock"""
    model: str | None = None
    """The model it serves; None: whatever it says it serves."""
    served_as: str | None = None
    """What its engine calls that model, where two replicas call different ones the same; None: just so."""
    models: frozenset[str] = frozenset()
    """Names it was found to serve, where that matters; empty: any. Beside `model`: the adapters it has loaded."""
    kind: str | None = None
    """Which engine it is (replica/dialects.py); None: found out when it first answers."""
    priority: bool = False
    """It heeds a priority in the request. Others would refuse one."""
    slots: int | None = None
    """Requests it may have at once; None: found by watching its latency."""
    token_limit: int | None = None
    """Outstanding tokens it may have at once; None: only requests are limited."""
    weight: float = 1.0
    lanes: frozenset[str] = frozenset()
    """Lanes it serves; empty: all."""
    tags: dict[str, str] = field(default_factory=dict)
    """quantization, gpu_type, version, …: labels on its figures."""
    api_key_file: Path | None = None
    """A file with the key that its engine wants, sent as `Authorization: Bearer …`; None: it wants none."""
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    """Further headers for everything that it is asked. They may be secret, and are never shown."""
    ca: Path | None = None
    """PEM file with whoever signed its certificate; None: whom the system trusts."""

    @property
    def public(self) -> "Replica":
        """Without what only its connections need to know: for whatever is written down."""
        if self.api_key_file is None and self.ca is None and not self.headers:
            return self
        return replace(self, api_key_file=None, headers={}, ca=None)

    @property
    def names(self) -> frozenset[str]:
        """Models it is asked for; empty: any."""
        return self.models if self.model is None else self.models | {self.model}


@dataclass(slots=True, eq=False)
class Load:
    """What a replica has to do right now, counted here and not scraped: scrapes lag behind bursts. Only the dispatcher
    writes it."""

    replica: Replica
    limit: float
    """Requests it may have at once."""
    requests: int = 0
    """Those that it has; one that asks for several choices counts for as many, up to all of the limit."""
    prefill_tokens: int = 0
    """Prompt tokens sent whose first token has not come back."""
    silent_tokens: int = 0
    """Of these, those that another replica answered first: they count until this one is heard of again. Otherwise one
    that is stuck would look idle as soon as its requests are taken from it, and be given more."""
    decode_tokens: int = 0
    """Output tokens still to come of requests past their first token, as predicted."""
    usable: float = 1.0
    """0: ejected. Below 1: on probation or ramping, and gets that share of its room."""
    ceiling: float = inf
    """Requests it may have at once for now, because it refused more; inf: it has not."""
    unreached: bool = False
    """There is a ceiling because nobody was reached: until it is tried again it is not usable."""
    prefill_token_s: float = 0.0005
    """Seconds per prompt token, as measured; before that a guess, the same for all."""
    tpot_s: float = 0.025
    """Seconds from one output token of a request to its next, as measured; before that a guess."""
    answer_token_s: float | None = None
    """Seconds that an answer in one piece takes for each of its output tokens, from its sending to its end, as
    measured; None: none was yet."""
    cold: bool = True
    """Since it came into use it has not been seen to generate anything."""
    sent_tokens: int = 0
    """Prompt tokens that it was sent, ever."""
    pace: PrefillPace = field(default_factory=PrefillPace)
    """What a prompt token takes there: for figures, not for routing."""

    @property
    def id(self) -> ReplicaId:
        return self.replica.id

    @property
    def tokens(self) -> int:
        return self.prefill_tokens + self.decode_tokens

    @property
    def room(self) -> int:
        """Requests it can take now."""
        limit = max(1.0, self.limit * self.usable) if self.usable > 0 else 0.0
        return max(0, int(min(limit, self.ceiling)) - self.requests)

    @property
    def use(self) -> float:
        """How much of its room is taken, 0 to 1 and beyond."""
        return self.requests / max(1.0, self.limit * max(self.usable, 1e-9))
