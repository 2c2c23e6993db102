"""Configures the gateway: each setting, its meaning and its default.

Type hints carry the bounds (hints.py): `config/file.py` turns a file into these values and names the path of each value
that does not fit. Contradictions between two values are in contradictions.py.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from headgate.config.batches import BatchesConfig
from headgate.config.engine import EngineConfig
from headgate.config.fleet import FleetConfig
from headgate.config.hedge import HedgeConfig
from headgate.config.hints import (
    BEND,
    GIGA,
    Algorithm,
    Count,
    CountedTokens,
    CountOrZero,
    Currency,
    HeaderValue,
    HttpUrl,
    KeyHash,
    Name,
    PerMinute,
    RedisUrl,
    Seconds,
    SecondsOrZero,
    SecretUrl,
    Share,
    ShareAboveZero,
    Text,
    TierName,
    WebOrigin,
    Weight,
    WeightOrZero,
    between,
)
from headgate.config.listen import EppConfig, ListenConfig
from headgate.config.models import ModelConfig, RolloutConfig
from headgate.config.output import OutputConfig
from headgate.config.warm import WarmConfig
from headgate.model.lane import LANES, Lane
from headgate.model.replica import Replica
from headgate.model.tier import DEFAULT_TIER, TIERS, Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class CorsConfig:
    origins: tuple[WebOrigin, ...] = ()
    """Origins of web pages that may use /v1 from a browser, such as https://app.example.com; "*": any page. Pages of
    other origins get 403 unless they send a known key. Never applies to /admin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifyConfig:
    long_above_tokens: Count = 16_384
    """Prompt tokens above which a request is long, whatever else it is."""
    fast_below_tokens: CountOrZero = 512
    """Prompt tokens below which a streaming request is fast; 0: none is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromisesConfig:
    ttft_least_s: Seconds = 0.05
    """Shortest time to first token that a request may promise; a shorter one counts as this."""
    ttft_most_s: Seconds = 300.0
    """Longest time to first token that a request may promise; a longer one counts as this. Four fifths of it may be
    spent waiting in the gateway."""
    tpot_least_s: Seconds = 0.005
    """Shortest time per further token that a request may promise; a shorter one counts as this."""
    tpot_most_s: Seconds = 10.0
    """Longest time per further token that a request may promise; a longer one counts as this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    name: Name
    """The tenant's name on records and figures; never the key."""
    allowed: bool = True
    """False: its requests are refused. The default for anonymous is True only while no tenant has a key."""
    key_sha256: tuple[KeyHash, ...] = ()
    """SHA-256 of each of the tenant's keys, in hex; several, so that a key can be replaced without a gap."""
    tier: TierName = DEFAULT_TIER
    """The tenant's tier. By default premium has four times the weight of free; `tiers` may add a reserve and caps."""
    weight: Weight = 1.0
    """Relative share within a lane while other tenants wait there too."""
    requests_per_min: PerMinute | None = None
    """Maximum requests per minute; None: no limit."""
    tokens_per_min: PerMinute | None = None
    """Maximum prompt and output tokens per minute; None: no limit."""
    count_tokens: CountedTokens = "whole"
    """Prompt tokens that count against tokens_per_min. whole: all of them. uncached: those that a replica computes, and
    not those in its prefix cache."""
    concurrency: Count | None = None
    """Maximum requests of the tenant at the replicas at once; each choice of a request counts. Further requests wait,
    and get 429 at the end of their waiting time. None: no limit of its own."""
    trusted: bool = False
    """True: the gateway obeys the tenant's headers for lane, priority and promises. Other tenants' are ignored."""
    default_lane: Name | None = None
    """Lane of the tenant's requests that name none; None: the gateway classifies them."""
    lanes: frozenset[Name] = frozenset()
    """Lanes that the tenant may use; empty: all."""
    max_tokens: Count | None = None
    """Maximum output tokens of one request, whatever it asks for; None: only the lane's own ceiling."""
    task: Name | None = None
    """Task of the tenant's requests that name none, such as code or extract; None: chat for chats, other for text."""
    caps: bool = True
    """False: neither tasks nor lanes limit the tenant's output, only max_tokens does."""


ANONYMOUS = Tenant(name="anonymous")
"""The tenant of all requests without a key."""


ROUTE_WEIGHTS = {
    "load": 1.0,  # how close the request's cost there is to the least
    "prefix": 2.0,  # times that a second of computing the prompt counts, as against a second of waiting
    "session": 0.5,  # it has the session, and costs nearly the least
}
"""Default weights in policy/replicas/route.py. A prompt that is computed although it is cached elsewhere delays others
too, so it counts for more than its own time (docs/decisions/0022)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingConfig:
    algorithm: Algorithm = "balanced"
    """How a replica is chosen. balanced: where the request costs least, counting the work that is there and the prompt
    tokens that are not in its cache."""
    bounded_load_epsilon: Annotated[float, between(0, 10)] = 0.25
    """A replica's sessions count only while a request costs at most (1 + this) × the least there."""
    exploration: Share = 0.01
    """Share of choices made at random, so that beliefs about a replica are tested. Never for urgent requests."""
    weights: dict[Name, WeightOrZero] = field(default_factory=lambda: dict(ROUTE_WEIGHTS))
    """Weights of the scores by which replicas are compared. The file may change some of ROUTE_WEIGHTS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    header_bytes: Annotated[int, between(256, 1 << 20)] = 16 * 1024
    """Maximum bytes of request line and headers together; more get 431."""
    header_count: Annotated[int, between(1, 10_000)] = 100
    """Maximum headers of a request; more get 431."""
    body_bytes: Annotated[int, between(1, 1 << 32)] = 8 * 1024 * 1024
    """Maximum bytes of a body; a larger one gets 413, unread if it announces its length."""
    bodies_bytes: Annotated[int, between(1, 1 << 40)] = 256 * 1024 * 1024
    """Maximum bytes of all bodies and WebSocket messages being received, together. Above it, the one that has taken
    longest gets 503. No less than body_bytes."""
    held_bytes: Annotated[int, between(1, 1 << 40)] = 256 * 1024 * 1024
    """Maximum bytes of all bodies longer than 64 KiB whose requests wait or run, together. Above it, a further one gets
    503. Where tenants have keys, each tenant may hold at most as much as it leaves free. No less than body_bytes."""
    json_depth: Annotated[int, between(4, 500)] = 64
    """Maximum depth of nested objects and arrays in a body."""
    json_containers: Annotated[int, between(1000, GIGA)] = 30_000
    """Maximum objects, arrays, fractions and words such as true in a body, plus half of its keys; more get 400. Each is
    slow enough to parse that 300 000 would stop every stream for a tenth of a second."""
    json_values: Annotated[int, between(1000, GIGA)] = 500_000
    """Maximum values in a body, such as token ids; more get 400."""
    messages: Annotated[int, between(1, GIGA)] = 10_000
    """Maximum messages of a chat, or items of a response's input; more get 400."""
    connections: Annotated[int, between(1, 1_000_000)] = 16_384
    """Maximum client connections. A further one closes the oldest idle connection; where all are busy, it gets 503."""
    open_fields: frozenset[Name] = frozenset()
    """Body fields that any tenant may send although they steer the engine itself (docs/limits.md lists them)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutsConfig:
    header_s: Seconds = 10.0
    """Maximum time from a request's first byte to the end of its headers, then 408. Also for a TLS handshake."""
    body_s: Seconds = 60.0
    """Maximum time from the end of the headers to the end of the body, then 408."""
    idle_s: Seconds = 75.0
    """Maximum idle time of a client's connection. Set it longer than the proxy in front keeps connections: a request
    written to a connection that is just being closed is lost."""
    connect_s: Seconds = 2.0
    """Maximum time to connect to a replica; then another is tried."""
    first_token_s: Seconds = 120.0
    """Maximum time from dispatch to a replica's first token. Long, because a slow prefill is no failure."""
    stall_s: Seconds = 30.0
    """Maximum silence between two tokens. Then another replica continues the stream, or the stream ends with an error
    event."""
    slow_client_grace_s: SecondsOrZero = 2.0
    """How long a client may leave its relay full before its lane's slow_client applies."""
    no_replica_wait_s: SecondsOrZero = 10.0
    """How long a request may wait while no replica can serve it at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayConfig:
    events: Count = 32
    """Maximum events that wait for one client."""
    bytes: Count = 256 * 1024
    """Maximum bytes that wait for one client."""
    spool_bytes: Count = 1024 * 1024
    """Maximum bytes that wait for one client where its lane's slow_client is spool; above it the generation is
    cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthConfig:
    probe_interval_s: Seconds = 1.0
    """Seconds between two live and ready probes of a replica."""
    deep_interval_s: Seconds = 30.0
    """Seconds between two checks that generate a token."""
    failures: Annotated[int, between(1, 1000)] = 3
    """Consecutive failures that eject a replica."""
    successes: Annotated[int, between(1, 1000)] = 2
    """Consecutive successes that bring a replica back."""
    cooldown_s: SecondsOrZero = 1.0
    """Time that a replica stays ejected before successes count. With the other defaults a revived replica serves within
    5 s."""
    ramp_s: SecondsOrZero = 5.0
    """Time in which a replica's room grows from a small share to all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryConfig:
    ratio: Share = 0.1
    """Retries allowed per request, over time, beyond what a dying replica had in flight: a failing fleet gets little
    extra load."""
    attempts: Annotated[int, between(1, 10)] = 3
    """Maximum times that one request is sent, the first included. Refusals and unreachable replicas do not count, nor
    do the attempts before one that streamed for 10 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedConfig:
    """The store that several gateways in front of the same replicas share."""

    redis: RedisUrl = "redis://127.0.0.1:6379/0"
    """Redis server with the tenants' buckets, where gateways also announce themselves."""
    prefix: Name = "headgate"
    """Prefix of all keys there. Gateways with another prefix share nothing with these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentsConfig:
    """The flight recorder: the last minute, kept as a trace when an alert turns critical."""

    folder: Path | None = None
    """Folder for the traces; None: they are kept while the gateway runs."""
    per_hour: CountOrZero = 4
    """Maximum traces an hour that the gateway writes by itself; 0: only those that are asked for."""
    files: Annotated[int, between(1, 1000)] = 20
    """Maximum traces in the folder; the oldest are removed."""
    bytes: Annotated[int, between(1 << 20, 1 << 40)] = 64 * 1024 * 1024
    """Maximum bytes of all traces together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveConfig:
    instruments: bool = True
    """False: requests are only counted, without percentiles, traces, alerts or explanations."""
    keep: Annotated[int, between(100, 10_000_000)] = 50_000
    """Number of records kept in memory, the latest. Each takes about a kilobyte."""
    availability: Annotated[float, between(0, 1)] = 0.999
    """Share of requests that must be answered, neither refused nor failed; the rest is the error budget. Clients' own
    errors and tenants over their own limits do not count."""
    utilisation_target: ShareAboveZero = BEND
    """Share of the replicas' room above which latency begins to bend and the gateway warns."""
    queue_per_replica: Count = 8
    """Requests waiting per usable replica above which the gateway raises an alert."""
    price_per_replica_hour: Annotated[float, between(0, 1_000_000)] | None = None
    """Price of a replica per hour, in `currency`, for the cost of tokens; None: no such figure."""
    currency: Currency = "USD"
    """Currency of that price, as it is shown beside a cost."""
    profiles: dict[Name, Text] = field(default_factory=dict)
    """Machine profile of the replicas by their tag gpu_type, `any` for all others: one that comes with Headgate, or a
    file made by `headgate fit`. A finding says where one differs from it."""
    labels: Annotated[int, between(1, 10_000)] = 100
    """Maximum different values of a label (model, tenant, …) on figures; further ones count as `other`."""
    otlp_endpoint: HttpUrl | None = None
    """Base address of an OpenTelemetry collector, such as http://127.0.0.1:4318; None: nothing is sent."""
    otlp_headers: dict[Text, HeaderValue] = field(default_factory=dict)
    """Headers sent to the collector: keys, and what else a backend requires."""
    otlp_metrics: bool = False
    """True: the figures of /metrics are sent to the collector too."""
    trace_share: Share = 0.02
    """Share of ordinary requests that are traced; slow and failed ones always are."""
    webhook: SecretUrl | None = None
    """URL that gets a POST when an alert begins or ends; None: no webhook."""
    incidents: IncidentsConfig = field(default_factory=IncidentsConfig)
    """What is kept of the last minute when an alert turns critical."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordConfig:
    path: Path | None = None
    """File to which each request is appended as a line of JSON; None: records stay in memory. Also --record."""
    rotate_bytes: Annotated[int, between(4096, 1 << 40)] = 256 * 1024 * 1024
    """Bytes above which the file is renamed path.1, path.1 is renamed path.2, …"""
    files: Annotated[int, between(1, 1000)] = 4
    """Maximum files, the current one included."""
    prompts: bool = False
    """True: prompts are recorded as well. They belong to your clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    listen: ListenConfig = field(default_factory=ListenConfig)
    """Where clients connect."""
    cors: CorsConfig = field(default_factory=CorsConfig)
    """The web pages that may use the gateway."""
    lanes: tuple[Lane, ...] = tuple(LANES.values())
    """The four default lanes, changed or not, and any that were added."""
    classify: ClassifyConfig = field(default_factory=ClassifyConfig)
    """The token counts that separate the lanes."""
    promises: PromisesConfig = field(default_factory=PromisesConfig)
    """The bounds of what requests of trusted keys may promise for themselves."""
    tenants: tuple[Tenant, ...] = ()
    """The tenants with a key."""
    anonymous: Tenant = ANONYMOUS
    """The tenant of requests without a key."""
    tiers: tuple[Tier, ...] = tuple(TIERS.values())
    """The tiers premium and free."""
    admin_keys: tuple[KeyHash, ...] = ()
    """SHA-256 of the keys that may change the running gateway. They belong to no tenant."""
    replicas: tuple[Replica, ...] = ()
    """Replicas that run already."""
    embedded: EngineConfig | None = None
    """The gateway's own engine, which a fleet of processes runs too; None: other replicas serve."""
    fleet: FleetConfig = field(default_factory=FleetConfig)
    """The replicas that the gateway itself starts and stops."""
    models: tuple[ModelConfig, ...] = ()
    """Model names that clients ask for, and what they stand for; any other name stands for itself."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    """How model versions change while the gateway runs."""
    routing: RoutingConfig = field(default_factory=RoutingConfig)
    """How a replica is chosen for a request."""
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    """What one client may ask of this process."""
    timeouts: TimeoutsConfig = field(default_factory=TimeoutsConfig)
    """Maximum time of each step."""
    relay: RelayConfig = field(default_factory=RelayConfig)
    """How much may wait for a client that reads slowly."""
    output: OutputConfig = field(default_factory=OutputConfig)
    """How much output an answer may have."""
    health: HealthConfig = field(default_factory=HealthConfig)
    """When a replica is ejected, and when it comes back."""
    warm: WarmConfig = field(default_factory=WarmConfig)
    """What a replica does before it is used, and while it is idle."""
    retry: RetryConfig = field(default_factory=RetryConfig)
    """How often a request is retried, or its stream continued, after a replica fails."""
    hedge: HedgeConfig = field(default_factory=HedgeConfig)
    """When a second replica gets the request because the first has not answered."""
    epp: EppConfig | None = None
    """Where proxies ask which replica a request may go to; None: nowhere."""
    shared: SharedConfig | None = None
    """Limits that several gateways keep together; None: this is the only gateway."""
    observe: ObserveConfig = field(default_factory=ObserveConfig)
    """What is measured, promised and exported."""
    record: RecordConfig = field(default_factory=RecordConfig)
    """The file that records all requests."""
    batches: BatchesConfig = field(default_factory=BatchesConfig)
    """Files of requests that are served while there is room."""

    @property
    def has_keys(self) -> bool:
        return any(tenant.key_sha256 for tenant in self.tenants)

    @property
    def asks_for_keys(self) -> bool:
        """Whether a key decides which clients are served. If so, /admin needs a key as well."""
        return self.has_keys or not self.anonymous.allowed
