"""What can be set about the gateway, what it means, and what it is when nobody sets it.

Hints carry the bounds (hints.py): `config/file.py` turns a file into these values and names the path of whatever does
not fit. What only shows when two values are seen together is in contradictions.py.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from headgate.config.engine import BatchConfig, EngineConfig
from headgate.config.fleet import FleetConfig
from headgate.config.hedge import HedgeConfig
from headgate.config.hints import (
    GIGA,
    Algorithm,
    Count,
    CountOrZero,
    Host,
    HttpUrl,
    KeyHash,
    Name,
    PerMinute,
    Prompt,
    Seconds,
    SecondsOrZero,
    Share,
    Text,
    TierName,
    WebOrigin,
    Weight,
    above_zero,
    between,
)
from headgate.config.models import (
    ModelConfig,
    RolloutConfig,
)
from headgate.config.output import OutputConfig
from headgate.config.shared import SharedConfig
from headgate.config.warm import WarmConfig
from headgate.model.lane import LANES, Lane
from headgate.model.replica import Replica
from headgate.model.tier import TIERS, Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    cert: Path
    """PEM file with the certificate and its chain."""
    key: Path
    """PEM file with the private key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayListenConfig:
    host: Host = "127.0.0.1"
    """Other than loopback only with a tenant's key, or --insecure."""
    port: Annotated[int, between(0, 65_535)] = 8000
    """0 takes a free one."""
    names: tuple[Host, ...] = ()
    """What a proxy in front calls this machine, in Host. Without any key, only these and loopback's names are answered:
    a web page may have any other name pointed here. With a tenant's key, any name is."""
    uds: Path | None = None
    """A Unix socket to listen on instead of host and port. A socket file that is left over is replaced. None: host and
    port."""
    uds_for: Literal["owner", "group", "everyone"] = "owner"
    """Who may connect to it, by the file's permissions. Admin without a key is only for owner."""
    tls: TlsConfig | None = None
    """None: plain HTTP."""
    drain_s: SecondsOrZero = 10.0
    """How long running streams may finish after SIGTERM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorsConfig:
    origins: tuple[WebOrigin, ...] = ()
    """Web pages that may use /v1 from a browser, such as https://app.example.com; "*": any page. Others get 403 unless
    they send a key that is known here. Never /admin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifyConfig:
    long_above_tokens: Count = 16_384
    """A prompt with more is long, whatever else the request is."""
    fast_below_tokens: CountOrZero = 512
    """A streaming request whose prompt has fewer is fast; 0: none is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    name: Name
    """On records and figures; never the key."""
    allowed: bool = True
    """False: its requests are refused. For anonymous the file's default is whether no tenant has a key."""
    key_sha256: tuple[KeyHash, ...] = ()
    """SHA-256 of each of its keys, in hex; several, so that a key can be replaced without a gap."""
    tier: TierName = "free"
    """Premium's reserved room and tighter caps, or what is left."""
    weight: Weight = 1.0
    """Share within a lane while other tenants wait there too."""
    requests_per_min: PerMinute | None = None
    """None: no limit."""
    tokens_per_min: PerMinute | None = None
    """Prompt and output together; None: no limit."""
    concurrency: Count | None = None
    """Most of its requests at the replicas at once, each of several choices counted; any more wait, and get 429 when
    they may wait no longer. None: no limit of its own."""
    trusted: bool = False
    """Its headers for lane, priority and identity count; anybody else's are ignored."""
    default_lane: Name | None = None
    """Where its requests go that name no lane; None: classified."""
    lanes: frozenset[Name] = frozenset()
    """Lanes it may use; empty: all."""
    max_tokens: Count | None = None
    """Most output tokens of one request, whatever it asks for; None: only the lane's own ceiling."""
    task: Name | None = None
    """What its requests are that name no task, such as code or extract; None: chats are chat, text is other."""
    caps: bool = True
    """False: neither its tasks nor its lanes limit its output, only max_tokens."""


ANONYMOUS = Tenant(name="anonymous")
"""Everybody who sends no key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingConfig:
    algorithm: Algorithm = "balanced"
    """balanced: the longest known prefix among the replicas near the least token load."""
    bounded_load_epsilon: Annotated[float, between(0, 10)] = 0.25
    """Prefix and session count only for replicas loaded at most (1 + this) × the least loaded one."""
    exploration: Share = 0.01
    """Share of choices made at random, so that what is believed of a replica is tested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    header_bytes: Annotated[int, between(256, 1 << 20)] = 16 * 1024
    """Request line and headers together; more is answered 431."""
    header_count: Annotated[int, between(1, 10_000)] = 100
    """More headers are answered 431."""
    body_bytes: Annotated[int, between(1, 1 << 32)] = 8 * 1024 * 1024
    """A larger body is answered 413, unread if it announces its length."""
    bodies_bytes: Annotated[int, between(1, 1 << 40)] = 256 * 1024 * 1024
    """Bytes of all bodies and WebSocket messages that are being received, together; past it, the one that has taken
    longest is answered 503. No less than body_bytes."""
    held_bytes: Annotated[int, between(1, 1 << 40)] = 256 * 1024 * 1024
    """Bytes of all bodies longer than 64 KiB whose requests wait or run, together; past it, a further one is answered
    503. Where tenants have keys, each may hold as much as it leaves free. No less than body_bytes."""
    json_depth: Annotated[int, between(4, 500)] = 64
    """Objects and arrays within each other in a body."""
    json_containers: Annotated[int, between(1000, GIGA)] = 30_000
    """Objects, arrays, fractions and words such as true in a body, and half of its keys; more are answered 400. Each is
    slow enough that 300 000 would stop every stream for a tenth of a second."""
    json_values: Annotated[int, between(1000, GIGA)] = 500_000
    """Values in a body, such as token ids; more are answered 400."""
    messages: Annotated[int, between(1, GIGA)] = 10_000
    """Messages of a chat, or items of a response's input; more are answered 400."""
    connections: Annotated[int, between(1, 1_000_000)] = 16_384
    """For a further one the oldest idle connection is closed; where all are being answered, it is answered 503."""
    open_fields: frozenset[Name] = frozenset()
    """Fields of a body that anybody may send, although they steer the engine itself (docs/limits.md lists them)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutsConfig:
    header_s: Seconds = 10.0
    """From a request's first byte to the end of its headers; then 408. Also for a TLS handshake."""
    body_s: Seconds = 60.0
    """From the end of the headers to the end of the body; then 408."""
    idle_s: Seconds = 75.0
    """A client's connection on which no request begins is closed after this. Longer than whatever is in front keeps it:
    a request written to a connection that is just being closed is lost."""
    connect_s: Seconds = 2.0
    """For a connection to a replica; then another is tried."""
    first_token_s: Seconds = 120.0
    """From dispatch to a replica's first token. Long: a slow prefill is no failure."""
    stall_s: Seconds = 30.0
    """Longest silence between two tokens; then the stream ends with an error event."""
    slow_client_grace_s: SecondsOrZero = 2.0
    """How long a client may leave its relay full before its lane's slow_client applies."""
    no_replica_wait_s: SecondsOrZero = 10.0
    """How long a request may wait while no replica can serve it at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayConfig:
    events: Count = 32
    """Most events that wait for one client."""
    bytes: Count = 256 * 1024
    """Most bytes that wait for one client."""
    spool_bytes: Count = 1024 * 1024
    """The same where its lane's slow_client is spool; past it the generation is cancelled after all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthConfig:
    probe_interval_s: Seconds = 1.0
    """Between two live and ready probes of a replica."""
    deep_interval_s: Seconds = 30.0
    """Between two checks that really generate a token."""
    failures: Annotated[int, between(1, 1000)] = 3
    """In a row, and the replica is out."""
    successes: Annotated[int, between(1, 1000)] = 2
    """In a row, and it is back."""
    cooldown_s: SecondsOrZero = 1.0
    """Time out before successes count. With the rest a revived replica is in use within 5 s."""
    ramp_s: SecondsOrZero = 5.0
    """From a small share of its room to all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryConfig:
    ratio: Share = 0.1
    """Retries per request, over time: a failing fleet is not hit harder."""
    attempts: Annotated[int, between(1, 10)] = 3
    """Most times one request is sent, the first included; not counted: refusals, and replicas that can't be reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedConfig:
    """What of EngineConfig makes sense for the replica inside the gateway."""

    model: Path | None = None
    """The GGUF file; None: the bundled one."""
    model_name: Text | None = None
    """The name clients use; None: the file's."""
    slots: Annotated[int, between(1, 1024)] = EngineConfig.slots
    """Sequences that can be in KV memory at once."""
    context: Annotated[int, between(16, GIGA)] = EngineConfig.context
    """Tokens a slot can hold: the longest prompt plus output."""
    threads: Annotated[int, between(1, 1024)] | None = None
    """None: one per core."""
    kv_tokens: Count | None = None
    """KV memory to hand out, in tokens; None: slots × context."""
    host_tokens: CountOrZero | None = None
    """Host memory for swapped and cached KV, in tokens; None: half of slots × context."""
    default_max_tokens: Count | None = None
    """Output limit of a request that names neither a limit nor a task, in place of that of the tasks `chat` and
    `other`; None: theirs."""
    truncate: bool = False
    """Cut an over-long prompt from the left instead of refusing it."""
    loras: tuple[Path, ...] = ()
    """LoRA adapters (GGUF) to apply."""
    chat_template: Path | None = None
    """A Jinja file that is used instead of the model's own template; None: the model's own."""
    system_prompts: tuple[Prompt, ...] = ()
    """Prefilled and pinned in the prefix cache before the gateway is ready."""
    gap_target_s: Seconds | None = None
    """Longest gap between two tokens of a running stream to aim for; None: its lane's."""
    step_limit_s: Seconds = BatchConfig.step_limit_s
    """Longest step to aim for while nobody is decoding."""
    longest_shared: Count | None = None
    """Sequences longer than this don't share a batch with shorter ones; None: any may."""
    in_order: bool = False
    """First come, first served for requests that name no lane; else short ones first."""
    draft_batch: CountOrZero = BatchConfig.draft_batch
    """Speculative decoding while at most this many sequences decode; 0 turns it off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveConfig:
    instruments: bool = True
    """False: requests are only counted; no percentiles, traces, alerts or explanations."""
    keep: Annotated[int, between(100, 10_000_000)] = 50_000
    """Records in memory, the latest. Each takes about a kilobyte."""
    availability: Annotated[float, between(0, 1)] = 0.999
    """Share of requests that must be answered, neither refused nor failed; the rest is the error budget. Clients' own
    errors and tenants over their own limits do not count."""
    utilisation_target: Annotated[float, above_zero(1)] = 0.65
    """Past this share of the replicas' room latency begins to bend, and a warning is given."""
    queue_per_replica: Count = 8
    """Requests waiting per usable replica above which an alert is given."""
    price_per_replica_hour: Annotated[float, between(0, 1_000_000)] | None = None
    """For the cost per 1 000 tokens, in any currency; None: no such figure."""
    labels: Annotated[int, between(1, 10_000)] = 100
    """Different values of a label (model, tenant, …) on figures; any more are counted as `other`."""
    otlp_endpoint: HttpUrl | None = None
    """Base address of an OpenTelemetry collector, such as http://127.0.0.1:4318; None: nothing is sent."""
    otlp_headers: dict[Text, Text] = field(default_factory=dict)
    """Sent with it: keys, and what a backend wants to know."""
    otlp_metrics: bool = False
    """Send the figures of /metrics there too."""
    trace_share: Share = 0.02
    """Of ordinary requests, those traced; slow and failed ones always are."""
    webhook: HttpUrl | None = None
    """Gets a POST when an alert begins or ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordConfig:
    path: Path | None = None
    """JSON lines, one for each request, appended; None: only in memory. Also --record."""
    rotate_bytes: Annotated[int, between(4096, 1 << 40)] = 256 * 1024 * 1024
    """A larger file is put aside as path.1, that one as path.2, …"""
    files: Annotated[int, between(1, 1000)] = 4
    """Most files, the current one included."""
    prompts: bool = False
    """Keep what was asked as well. Mind whose it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    listen: GatewayListenConfig = field(default_factory=GatewayListenConfig)
    """Where clients connect."""
    cors: CorsConfig = field(default_factory=CorsConfig)
    """Whose web pages may use it."""
    lanes: tuple[Lane, ...] = tuple(LANES.values())
    """The default four, changed or not, and whatever was added."""
    classify: ClassifyConfig = field(default_factory=ClassifyConfig)
    """Where the lines between lanes lie."""
    tenants: tuple[Tenant, ...] = ()
    """Who has a key."""
    anonymous: Tenant = ANONYMOUS
    """Who has none."""
    tiers: tuple[Tier, ...] = tuple(TIERS.values())
    """What premium and free are worth."""
    admin_keys: tuple[KeyHash, ...] = ()
    """SHA-256 of the keys that may change the running gateway. They are no tenant's."""
    replicas: tuple[Replica, ...] = ()
    """Engines that are already running."""
    embedded: EmbeddedConfig | None = None
    """The engine that the gateway runs for itself, and what a fleet of processes runs; None: there are others."""
    fleet: FleetConfig = field(default_factory=FleetConfig)
    """Replicas that the gateway starts and stops by itself."""
    models: tuple[ModelConfig, ...] = ()
    """Names that clients ask for, and what they stand for; any other name stands for itself."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    """How versions are changed while the gateway runs."""
    routing: RoutingConfig = field(default_factory=RoutingConfig)
    """Which replica a request goes to."""
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    """What one client may ask of this process."""
    timeouts: TimeoutsConfig = field(default_factory=TimeoutsConfig)
    """How long each step may take."""
    relay: RelayConfig = field(default_factory=RelayConfig)
    """What may wait for a client that reads slowly."""
    output: OutputConfig = field(default_factory=OutputConfig)
    """How much an answer may say."""
    health: HealthConfig = field(default_factory=HealthConfig)
    """When a replica is out, and when it is back."""
    warm: WarmConfig = field(default_factory=WarmConfig)
    """What a replica has to do before it is used, and while it is idle."""
    retry: RetryConfig = field(default_factory=RetryConfig)
    """What happens when a replica fails before the first token."""
    hedge: HedgeConfig = field(default_factory=HedgeConfig)
    """When a second replica is asked because the first has not answered."""
    shared: SharedConfig | None = None
    """Limits that hold for several gateways together; None: this is the only one."""
    observe: ObserveConfig = field(default_factory=ObserveConfig)
    """What is measured, promised and told to others."""
    record: RecordConfig = field(default_factory=RecordConfig)
    """The file of all requests."""

    @property
    def has_keys(self) -> bool:
        return any(tenant.key_sha256 for tenant in self.tenants)

    @property
    def asks_for_keys(self) -> bool:
        """Whether a key says who is served. From the first on, /admin is open to nobody without one either."""
        return self.has_keys or not self.anonymous.allowed
