"""What can be set about the gateway, what it means, and what it is when nobody sets it.

Hints carry the bounds: `Annotated[float, Check]` is read by `config_file.py`, which turns a file into these values and
names the path of whatever does not fit. What only shows when two values are seen together is in `contradictions`.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from headgate.model.cluster_config import KubernetesConfig, RayConfig
from headgate.model.config import EngineConfig
from headgate.model.fleet_config import EmulateConfig, FleetConfig
from headgate.model.fleet_config import contradictions as fleet_contradictions
from headgate.model.hedge_config import HedgeConfig
from headgate.model.lane import LANES, Lane
from headgate.model.models_config import (
    CanaryConfig,
    ModelConfig,
    RolloutConfig,
    RuleConfig,
    ShadowConfig,
    VersionConfig,
)
from headgate.model.models_config import contradictions as model_contradictions
from headgate.model.output_config import AliasConfig, OutputConfig, TaskConfig
from headgate.model.replica import Replica, ReplicaId
from headgate.model.scale_config import ScaleConfig
from headgate.model.shared_config import SharedConfig
from headgate.model.tier import TIERS, Tier
from headgate.model.warm_config import AdapterConfig, WarmConfig

# -- bounds -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Check:
    expected: str
    """Ends the sentence "expected a number …"."""
    allows: Callable[[Any], bool]
    secret: bool = False
    """The value is never shown: somebody may have written a key where its hash belongs."""


def _between(least: float, most: float) -> Check:
    return Check(f"from {least:g} to {most:d}", lambda value: least <= value <= most)


def _above_zero(most: int) -> Check:
    return Check(f"above 0, at most {most:d}", lambda value: 0 < value <= most)


def _matching(pattern: str, expected: str) -> Check:
    return Check(expected, lambda value: re.fullmatch(pattern, value) is not None)


def _is_key_hash(value: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{64}", value) is not None and value != _HASH_OF_NOTHING


def _is_replica_url(url: str) -> bool:
    if not re.fullmatch(r"https?://[!-~]+|unix:/[!-~]+", url):
        return False
    if url.startswith("unix:"):
        return True
    try:
        parts = urlsplit(url)
        sane = parts.port != 0 and bool(parts.hostname)
    except ValueError:
        return False
    return sane and "@" not in parts.netloc and parts.path in ("", "/") and "?" not in url and "#" not in url


def _is_http_url(url: str) -> bool:
    if not re.fullmatch(r"https?://[!-~]{1,2000}", url):
        return False
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0 and "@" not in parts.netloc
    except ValueError:
        return False


def _is_redis_url(url: str) -> bool:
    if not re.fullmatch(r"(redis|rediss)://[!-~]{1,1000}|unix:///[!-~]{1,1000}", url):
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme == "unix" or (bool(parts.hostname) and parts.port != 0)
    except ValueError:
        return False


_HASH_OF_NOTHING = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
_GIGA = 1_000_000_000

Seconds = Annotated[float, _above_zero(86_400)]
SecondsOrZero = Annotated[float, _between(0, 86_400)]
Weight = Annotated[float, _above_zero(1_000_000)]
Share = Annotated[float, _between(0, 1)]
ShareAboveZero = Annotated[float, _above_zero(1)]
Count = Annotated[int, _between(1, _GIGA)]
CountOrZero = Annotated[int, _between(0, _GIGA)]
PerMinute = Annotated[int, _between(1, 1000 * _GIGA)]
Name = Annotated[str, _matching(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", "of letters, digits, '_' and '-', at most 64")]
Text = Annotated[str, _matching(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,256}", "of 1 to 256 characters")]
Prompt = Annotated[str, _matching(r"[^\x00\ud800-\udfff]+", "that is not empty")]
DnsName = Annotated[str, _matching(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "of lowercase letters, digits and '-'")]
Host = Annotated[str, _matching(r"[A-Za-z0-9.:_%-]{1,253}", "such as 127.0.0.1, ::1 or gateway.internal")]
ReplicaName = Annotated[str, _matching(r"[!-~]{1,256}", "without spaces, at most 256 characters")]
ReplicaUrl = Annotated[str, Check("such as http://host:8000, without a path, or unix:/run/x.sock", _is_replica_url)]
HttpUrl = Annotated[str, Check("such as http://127.0.0.1:4318, without a user and password", _is_http_url)]
RedisUrl = Annotated[str, Check("such as redis://host:6379/0, rediss://… or unix:///path", _is_redis_url, True)]
KeyHash = Annotated[
    str, Check("of 64 lowercase hex digits, the SHA-256 of a key that is not empty", _is_key_hash, True)
]

Algorithm = Literal[
    "balanced", "round_robin", "least_connections", "weighted", "token_aware", "power_of_two",
    "prefix", "session", "tenant",
]  # fmt: skip
TierName = Literal["premium", "free"]
Kind = Literal["openai", "headgate", "vllm", "sglang", "tgi", "tensorrt_llm", "triton", "llama_cpp"]

BOUNDS: dict[type, dict[str, Any]] = {
    Tier: {
        "name": TierName,
        "weight": Weight,
        "reserve": Share,
        "longest_neighbour": Count | None,
        "max_tokens": Count | None,
    },
    Lane: {
        "name": Name,
        "priority": Annotated[int, _between(0, 100)],
        "ttft_target_s": Seconds,
        "gap_target_s": Seconds,
        "wait_bound_s": Seconds,
        "weight": Weight,
        "queue_limit": Count,
        "concurrency": Count | None,
        "reserve": Share,
        "hold_above": ShareAboveZero,
        "max_tokens": Count,
        "generation_s": Seconds | None,
        "ttft_p50_s": Seconds | None,
        "ttft_p99_s": Seconds | None,
        "tpot_p50_s": Seconds | None,
        "e2e_p95_s": Seconds | None,
        "e2e_p99_s": Seconds | None,
    },
    Replica: {
        "id": ReplicaName,
        "url": ReplicaUrl,
        "model": Text | None,
        "served_as": Text | None,
        "models": frozenset[Text],
        "kind": Kind | None,
        "slots": Count | None,
        "token_limit": Count | None,
        "weight": Weight,
        "lanes": frozenset[Name],
        "tags": dict[Name, Text],
    },
    SharedConfig: {"redis": RedisUrl, "prefix": Name},
    HedgeConfig: {
        "share": Share,
        "percentile": Share,
        "least_s": SecondsOrZero,
        "least_samples": Annotated[int, _between(20, 1000)],
        "longest_prompt_tokens": Count,
        "most_use": Share,
        "lanes": frozenset[Name],
    },
    AdapterConfig: {"name": Text, "path": Text},
    WarmConfig: {
        "timeout_s": Seconds,
        "limit_s": SecondsOrZero,
        "longest_tokens": Annotated[int, _between(16, 131_072)],
        "system_prompts": tuple[Prompt, ...],
        "keep_alive_s": SecondsOrZero,
    },
    TaskConfig: {"max_tokens": Count, "stop": tuple[Prompt, ...]},
    AliasConfig: {"name": Text, "task": Name, "model": Text | None},
    OutputConfig: {"long_prompt_tokens": Count, "long_prompt_max_tokens": Count},
    ScaleConfig: {
        "min": Annotated[int, _between(0, 10_000)],
        "max": Annotated[int, _between(1, 10_000)],
        "warm": Annotated[int, _between(0, 10_000)],
        "utilisation_target": ShareAboveZero,
        "queue_per_replica": Weight,
        "tokens_per_replica": Count | None,
        "tokens_per_s": Weight | None,
        "up_cooldown_s": SecondsOrZero,
        "down_cooldown_s": SecondsOrZero,
        "down_share": ShareAboveZero,
        "forecast_quantile": ShareAboveZero,
        "ahead_s": SecondsOrZero,
        "idle_s": Seconds,
    },
    FleetConfig: {
        "drain_s": SecondsOrZero,
        "start_s": Seconds,
        "start_limit_s": Seconds,
    },
    KubernetesConfig: {
        "name": DnsName,
        "namespace": DnsName | None,
        "selector": Text | None,
        "port": Annotated[int, _between(1, 65_535)],
        "place_s": Seconds,
        "api": HttpUrl | None,
    },
    RayConfig: {
        "address": Text,
        "namespace": Text,
        "cpus": Annotated[float, _between(0, 10_000)],
        "gpus": Annotated[float, _between(0, 10_000)],
        "resources": dict[Text, Weight],
        "place_s": Seconds,
    },
    EmulateConfig: {
        "profile": Text,
        "dilate": Annotated[float, _above_zero(10_000)],
        "cold_start_s": SecondsOrZero,
        "slots": Annotated[int, _between(1, 1024)] | None,
        "context": Annotated[int, _between(16, _GIGA)] | None,
    },
    ModelConfig: {"name": Text, "use": Text | None, "when_full": Text | None, "full_above": ShareAboveZero},
    VersionConfig: {"name": Name, "model": Text, "weight": Annotated[float, _between(0, 1_000_000)]},
    CanaryConfig: {
        "steps": tuple[ShareAboveZero, ...],
        "step_requests": Count,
        "min_samples": Count,
        "limit_requests": Count,
        "acceptable": Annotated[float, _between(1, 100)],
        "unacceptable": Annotated[float, _between(1, 100)],
        "longer": Annotated[float, _between(1.01, 100)],
        "error_margin": ShareAboveZero,
        "soak_s": Annotated[float, _between(0, 30 * 86_400)],
    },
    ShadowConfig: {"share": ShareAboveZero, "concurrency": Annotated[int, _between(1, 10_000)]},
    RuleConfig: {
        "name": Name,
        "use": Text,
        "when_full": Text | None,
        "tasks": frozenset[Name],
        "prompt_tokens_above": CountOrZero | None,
        "prompt_tokens_below": Count | None,
        "headers": dict[Name, Text],
    },
}
"""Hints for nouns whose own have no bounds, because policies and simulator use them too."""


# -- sections ---------------------------------------------------------------------------------------------


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
    port: Annotated[int, _between(0, 65_535)] = 8000
    """0 takes a free one."""
    tls: TlsConfig | None = None
    """None: plain HTTP."""
    drain_s: SecondsOrZero = 10.0
    """How long running streams may finish after SIGTERM."""


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
    trusted: bool = False
    """Its headers for lane, priority and identity count; anybody else's are ignored."""
    default_lane: Name | None = None
    """Where its requests go that name no lane; None: classified."""
    lanes: frozenset[Name] = frozenset()
    """Lanes it may use; empty: all."""
    max_tokens: Count | None = None
    """Most output tokens of one request, whatever it asks for; None: only the lane's own ceiling."""
    task: Name | None = None
    """What its requests are that name no task, such as chat or extract; None: other."""
    caps: bool = True
    """False: neither its tasks nor its lanes limit its output, only max_tokens."""


ANONYMOUS = Tenant(name="anonymous")
"""Everybody who sends no key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingConfig:
    algorithm: Algorithm = "balanced"
    """balanced: the longest known prefix among the replicas near the least token load."""
    bounded_load_epsilon: Annotated[float, _between(0, 10)] = 0.25
    """Prefix and session count only for replicas loaded at most (1 + this) × the least loaded one."""
    exploration: Share = 0.01
    """Share of choices made at random, so that what is believed of a replica is tested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    header_bytes: Annotated[int, _between(256, 1 << 20)] = 16 * 1024
    """Request line and headers together; more is answered 431."""
    header_count: Annotated[int, _between(1, 10_000)] = 100
    """More headers are answered 431."""
    body_bytes: Annotated[int, _between(1, 1 << 32)] = 8 * 1024 * 1024
    """A larger body is answered 413, unread if it announces its length."""
    json_depth: Annotated[int, _between(4, 500)] = 64
    """Objects and arrays within each other in a body."""
    connections: Annotated[int, _between(1, 1_000_000)] = 16_384
    """A further client is answered 503 and closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutsConfig:
    header_s: Seconds = 10.0
    """From a request's first byte to the end of its headers; then 408."""
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
    failures: Annotated[int, _between(1, 1000)] = 3
    """In a row, and the replica is out."""
    successes: Annotated[int, _between(1, 1000)] = 2
    """In a row, and it is back."""
    cooldown_s: SecondsOrZero = 1.0
    """Time out before successes count. With the rest a revived replica is in use within 5 s."""
    ramp_s: SecondsOrZero = 5.0
    """From a small share of its room to all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryConfig:
    ratio: Share = 0.1
    """Retries per request, over time: a failing fleet is not hit harder."""
    attempts: Annotated[int, _between(1, 10)] = 3
    """Most replicas tried for one request, the first included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedConfig:
    """What of EngineConfig makes sense for the replica inside the gateway."""

    model: Path | None = None
    """The GGUF file; None: the bundled one."""
    model_name: Text | None = None
    """The name clients use; None: the file's."""
    slots: Annotated[int, _between(1, 1024)] = EngineConfig.slots
    """Sequences that can be in KV memory at once."""
    context: Annotated[int, _between(16, _GIGA)] = EngineConfig.context
    """Tokens a slot can hold: the longest prompt plus output."""
    threads: Annotated[int, _between(1, 1024)] | None = None
    """None: one per core."""
    kv_tokens: Count | None = None
    """KV memory to hand out, in tokens; None: slots × context."""
    host_tokens: CountOrZero | None = None
    """Host memory for swapped and cached KV, in tokens; None: half of slots × context."""
    default_max_tokens: Count = EngineConfig.default_max_tokens
    """Output limit of a request that names none."""
    truncate: bool = False
    """Cut an over-long prompt from the left instead of refusing it."""
    loras: tuple[Path, ...] = ()
    """LoRA adapters (GGUF) to apply."""
    chat_template: Path | None = None
    """A Jinja file that is used instead of the model's own template; None: the model's own."""
    system_prompts: tuple[Prompt, ...] = ()
    """Prefilled and pinned in the prefix cache before the gateway is ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveConfig:
    instruments: bool = True
    """False: requests are only counted; no percentiles, traces, alerts or explanations."""
    keep: Annotated[int, _between(100, 10_000_000)] = 50_000
    """Records in memory, the latest. Each takes about a kilobyte."""
    availability: Annotated[float, _between(0, 1)] = 0.999
    """Share of requests that must not fail through our fault; the rest is the error budget."""
    utilisation_target: Annotated[float, _above_zero(1)] = 0.65
    """Past this share of the replicas' room latency begins to bend, and a warning is given."""
    queue_per_replica: Count = 8
    """Requests waiting per usable replica above which an alert is given."""
    price_per_replica_hour: Annotated[float, _between(0, 1_000_000)] | None = None
    """For the cost per 1 000 tokens, in any currency; None: no such figure."""
    labels: Annotated[int, _between(1, 10_000)] = 100
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
    rotate_bytes: Annotated[int, _between(4096, 1 << 40)] = 256 * 1024 * 1024
    """A larger file is put aside as path.1, that one as path.2, …"""
    files: Annotated[int, _between(1, 1000)] = 4
    """Most files, the current one included."""
    prompts: bool = False
    """Keep what was asked as well. Mind whose it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    listen: GatewayListenConfig = field(default_factory=GatewayListenConfig)
    """Where clients connect."""
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


# -- what only shows together -----------------------------------------------------------------------------


def replica_id(url: str) -> ReplicaId:
    """What a replica is called that nobody gave an id."""
    return url.removeprefix("http://").removeprefix("https://").removeprefix("unix:").rstrip("/")


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """The end of a complaint about a word that is not known."""
    close = get_close_matches(word, known, n=1)
    return f"did you mean {close[0]}?" if close else f"there is {', '.join(known) or 'none'}"


def contradictions(config: GatewayConfig) -> Iterator[tuple[str, str]]:
    """(path, what is wrong) for values that are fine alone."""
    yield from _lane_references(config)
    yield from _repeated_keys(config)
    yield from _unknown_tasks(config)
    yield from _odd_tenants(config)
    yield from model_contradictions(config.models, _served(config))
    yield from fleet_contradictions(config.fleet)
    seen: dict[ReplicaId, int] = {}
    for index, replica in enumerate(config.replicas):
        first = seen.setdefault(replica.id, index)
        if first != index:
            yield f"replicas[{index}].id", f"{replica.id} is already the id of replicas[{first}]; give one another id"
    if config.replicas and config.embedded is not None and config.fleet.kind == "fixed":
        yield "embedded", "expected nothing while replicas are given: they serve instead of it"
    reserved = sum(lane.reserve for lane in config.lanes)
    if reserved > 1 + 1e-9:
        yield "lanes", f"expected reserves that add up to 1 at most, got {reserved:g}"
    kept = sum(tier.reserve for tier in config.tiers)
    if kept > 1 + 1e-9:
        yield "tiers", f"expected reserves that add up to 1 at most, got {kept:g}"
    if config.classify.fast_below_tokens > config.classify.long_above_tokens + 1:
        yield "classify.fast_below_tokens", "expected no more than classify.long_above_tokens"
    if config.relay.spool_bytes < config.relay.bytes:
        yield "relay.spool_bytes", "expected no less than relay.bytes"


def _served(config: GatewayConfig) -> frozenset[str] | None:
    """Models by name; None: somebody serves what nobody can tell before asking."""
    if config.fleet.kind != "fixed" or not config.replicas or not all(replica.names for replica in config.replicas):
        return None
    return frozenset(name for replica in config.replicas for name in replica.names)


def _lane_references(config: GatewayConfig) -> Iterator[tuple[str, str]]:
    known = [lane.name for lane in config.lanes]
    named = [(f"replicas[{index}].lanes", sorted(replica.lanes)) for index, replica in enumerate(config.replicas)]
    for path, tenant in _with_paths(config):
        named.append((f"{path}.lanes", sorted(tenant.lanes)))
        named.append((f"{path}.default_lane", [tenant.default_lane] if tenant.default_lane else []))
        if tenant.default_lane and tenant.lanes and tenant.default_lane not in tenant.lanes:
            yield f"{path}.default_lane", f"{tenant.default_lane} is not among the lanes it may use"
    named.append(("hedge.lanes", sorted(config.hedge.lanes)))
    for path, names in named:
        for name in names:
            if name not in known:
                yield path, f"no lane is called {name}; {did_you_mean(name, known)}"


def _unknown_tasks(config: GatewayConfig) -> Iterator[tuple[str, str]]:
    known = list(config.output.tasks)
    named = [(f"{path}.task", tenant.task) for path, tenant in _with_paths(config) if tenant.task is not None]
    named += [(f"output.aliases[{index}].task", alias.task) for index, alias in enumerate(config.output.aliases)]
    for path, task in named:
        if task not in known:
            yield path, f"no task is called {task}; {did_you_mean(task, known)}"


def _repeated_keys(config: GatewayConfig) -> Iterator[tuple[str, str]]:
    tenants = [(f"{path}.key_sha256", tenant.key_sha256) for path, tenant in _with_paths(config)]
    for holders in (tenants, [("admin_keys", config.admin_keys)]):
        seen: dict[str, str] = {}
        for path, keys in holders:
            for index, key in enumerate(keys):
                here = f"{path}[{index}]"
                first = seen.setdefault(key, here)
                if first != here:
                    yield here, f"the same key is already in {first}"


def _odd_tenants(config: GatewayConfig) -> Iterator[tuple[str, str]]:
    for tenant in config.tenants:
        path = f"tenants.{tenant.name}"
        if tenant.name == ANONYMOUS.name:
            yield path, "expected another name: those without a key have their own section, anonymous"
        elif not tenant.key_sha256:
            yield f"{path}.key_sha256", "expected at least one key: without, nobody can be this tenant"


def _with_paths(config: GatewayConfig) -> list[tuple[str, Tenant]]:
    return [*((f"tenants.{tenant.name}", tenant) for tenant in config.tenants), ("anonymous", config.anonymous)]
