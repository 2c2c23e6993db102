"""Finds config values that are valid alone and contradict each other."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from headgate.config.engine import contradictions as engine_contradictions
from headgate.config.fleet import contradictions as fleet_contradictions
from headgate.config.gateway import ANONYMOUS, GatewayConfig, Tenant
from headgate.config.models import contradictions as model_contradictions
from headgate.model.replica import Replica, ReplicaId

OUR_HEADERS = frozenset(("host", "connection", "content-length", "content-type", "transfer-encoding", "x-request-id"))
"""Request headers that the gateway itself writes to replicas."""


def replica_id(url: str) -> ReplicaId:
    """The id of a replica whose config gives none, made from its address."""
    return url.removeprefix("http://").removeprefix("https://").removeprefix("unix:").rstrip("/")


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """Returns the end of a message about an unknown word: a suggestion or the list of known words."""
    close = get_close_matches(word, known, n=1)
    return f"did you mean {close[0]}?" if close else f"there is {', '.join(known) or 'none'}"


def contradictions(config: GatewayConfig) -> Iterator[tuple[str, str]]:
    """Yields (path, problem) for values that are valid alone."""
    yield from _lane_references(config)
    yield from _repeated_keys(config)
    yield from _unknown_tasks(config)
    yield from _odd_tenants(config)
    yield from odd_workers(config)
    yield from model_contradictions(config.models, _served(config))
    yield from fleet_contradictions(config.fleet)
    if config.embedded is not None:
        yield from ((f"embedded.{name}", problem) for name, problem in engine_contradictions(config.embedded))
    seen: dict[ReplicaId, int] = {}
    for index, replica in enumerate(config.replicas):
        first = seen.setdefault(replica.id, index)
        if first != index:
            yield f"replicas[{index}].id", f"{replica.id} is already the id of replicas[{first}]; give one another id"
        yield from _odd_access(f"replicas[{index}]", replica)
    for path, pool in config.fleet.named:
        if pool.kind == "kubernetes":
            yield from _odd_access(f"{path}.access", pool.access.replica("pod", pool.kubernetes.scheme + ":"))
    if config.replicas and config.embedded is not None and not config.fleet.every:
        yield "embedded", "expected nothing while replicas are given: they serve instead of it"
    if config.embedded is not None and config.fleet.runs_vllm and not config.fleet.runs_engines:
        yield "embedded", "expected nothing with fleet.vllm, which serves instead of it"
    reserved = sum(lane.reserve for lane in config.lanes)
    if reserved > 1 + 1e-9:
        yield "lanes", f"expected reserves that add up to 1 at most, got {reserved:g}"
    kept = sum(tier.reserve for tier in config.tiers)
    if kept > 1 + 1e-9:
        yield "tiers", f"expected reserves that add up to 1 at most, got {kept:g}"
    if not any(config.routing.weights.values()):
        yield "routing.weights", "expected at least one above 0: without, every replica has the same score"
    if config.classify.fast_below_tokens > config.classify.long_above_tokens + 1:
        yield "classify.fast_below_tokens", "expected no more than classify.long_above_tokens"
    for name, least, most in (
        ("ttft", config.promises.ttft_least_s, config.promises.ttft_most_s),
        ("tpot", config.promises.tpot_least_s, config.promises.tpot_most_s),
    ):
        if least > most:
            yield f"promises.{name}_least_s", f"expected no more than promises.{name}_most_s"
    if config.limits.bodies_bytes < config.limits.body_bytes:
        yield "limits.bodies_bytes", "expected no less than limits.body_bytes"
    if config.limits.held_bytes < config.limits.body_bytes:
        yield "limits.held_bytes", "expected no less than limits.body_bytes"
    if config.relay.spool_bytes < config.relay.bytes:
        yield "relay.spool_bytes", "expected no less than relay.bytes"


def _odd_access(path: str, replica: Replica) -> Iterator[tuple[str, str]]:
    names = [name.lower() for name in replica.headers]
    for name in names:
        if name in OUR_HEADERS:
            yield f"{path}.headers", f"{name} is written with every request; leave it out"
        elif names.count(name) > 1:
            yield f"{path}.headers", f"{name} is given twice"
        elif name == "authorization" and replica.api_key_file is not None:
            yield f"{path}.headers", "authorization is what api_key_file is for; give one of the two"
    if replica.ca is not None and not replica.url.startswith("https:"):
        yield f"{path}.ca", f"expected an https address, got {replica.url}"


def _served(config: GatewayConfig) -> frozenset[str] | None:
    """The models that replicas serve; None: not known before the replicas have been asked."""
    own = config.fleet.served(config.embedded)
    if own is None or not (config.replicas or own) or not all(replica.names for replica in config.replicas):
        return None
    return own | {name for replica in config.replicas for name in replica.names}


def odd_workers(config: GatewayConfig) -> Iterator[tuple[str, str]]:
    """What several processes can't serve together."""
    if config.listen.workers == 1:
        return
    if config.models:
        yield "models", "expected none with listen.workers above 1: versions are drawn in one process; leave one out"
    if config.epp is not None:
        yield "epp", "expected none with listen.workers above 1: one process answers proxies; leave one out"
    if config.listen.uds is not None:
        yield "listen.uds", "expected none with listen.workers above 1: a socket file is one process's; give a port"


def _lane_references(config: GatewayConfig) -> Iterator[tuple[str, str]]:
    known = [lane.name for lane in config.lanes]
    named = [(f"replicas[{index}].lanes", sorted(replica.lanes)) for index, replica in enumerate(config.replicas)]
    named += [(f"fleet.pools[{index}].lanes", sorted(pool.lanes)) for index, pool in enumerate(config.fleet.pools)]
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
