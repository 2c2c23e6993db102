"""Reads the config file: YAML in, a GatewayConfig out, or every problem with its line and path.

In values, ${NAME} stands for an environment variable (config/forms/environment.py), and the file of NAME_file holds a
secret NAME (config/forms/secrets.py). Merge keys are not supported. The reader follows the type hints straight through
YAML's nodes (config/nodes.py): each problem has a line, and a node that no hint asks for is never walked, so aliases
cannot explode.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import cache
from operator import itemgetter
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import yaml

from headgate.config.bounds import BOUNDS
from headgate.config.contradictions import contradictions, did_you_mean, replica_id
from headgate.config.engine import EngineConfig
from headgate.config.fleet import with_defaults
from headgate.config.forms.secrets import SUFFIX, Unusable, is_secret, read_lines
from headgate.config.gateway import (
    ANONYMOUS,
    ROUTE_WEIGHTS,
    GatewayConfig,
    RoutingConfig,
    Tenant,
)
from headgate.config.hints import Name, ReplicaUrl, WeightOrZero
from headgate.config.nodes import BAD, LIST, MAPPING, advice, compose, expected, got, join, plain, scalar, short
from headgate.config.output import OTHER, TASKS, OutputConfig, TaskConfig
from headgate.model.errors import UsageError
from headgate.model.lane import LANES, WAIT_SHARE, Lane
from headgate.model.replica import Replica
from headgate.model.tier import TIERS, Tier

MOST_PROBLEMS = 20


def load(path: Path, environ: Mapping[str, str] | None = None) -> GatewayConfig:
    """`environ`: the environment variables; None: those of this process."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; `headgate init` writes a config") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8 text") from None
    return parse(text, str(path), os.environ if environ is None else environ)


def parse(text: str, name: str, environ: Mapping[str, str] | None = None) -> GatewayConfig:
    """Reads a config from text. `name`: what problems call the file. `environ`: what ${NAME} stands for; None: the text
    comes from a client, so neither variables nor files are read."""
    reader = _Reader(reads_files=environ is not None)
    config: GatewayConfig = reader.gateway(compose(text, name, environ))
    if config is not BAD:
        for path, problem in contradictions(config):
            reader.problem(path, problem)
    if reader.problems:
        lines = [f"{name}:{line}: {problem}" for line, problem in sorted(reader.problems, key=itemgetter(0))]
        left_out = [f"{name}: and {len(lines) - MOST_PROBLEMS} more"] if len(lines) > MOST_PROBLEMS else []
        raise UsageError("\n".join(lines[:MOST_PROBLEMS] + left_out))
    return config


def replica_at(url: str) -> Replica:
    """Makes a replica from a --replica argument, of which only the address is known."""
    if not get_args(ReplicaUrl)[1].allows(url):
        raise UsageError(f"--replica: expected {expected(ReplicaUrl)}, got {short(url)}{advice(ReplicaUrl, url)}")
    return _called(Replica(id="", url=url))


def describe(config: GatewayConfig) -> str:
    """Describes a config for `serve --check`: one line, and a note on each setting that is allowed but may be a
    mistake."""
    listen = config.listen
    host = f"[{listen.host}]" if ":" in listen.host else listen.host
    served = _served_by(config)
    lanes, tenants = _count(len(config.lanes), "lane"), _count(len(config.tenants), "tenant")
    where = f"{'https' if listen.tls else 'http'}://{host}:{listen.port}"
    if listen.uds is not None:
        where = f"unix:{listen.uds}"
    lines = [f"ok: {served}, {lanes}, {tenants}, listens on {where}"]
    serving = [replica.lanes for replica in config.replicas] + [pool.lanes for pool in config.fleet.every]
    if serving and all(serving):
        idle = [lane.name for lane in config.lanes if not any(lane.name in lanes for lanes in serving)]
        lines += [f"note: no replica serves lane {name}" for name in idle]
    if config.has_keys and config.anonymous.allowed:
        lines.append("note: requests without a key are served too (anonymous.allowed)")
    return "\n".join(lines)


def _served_by(config: GatewayConfig) -> str:
    vllm, most = config.fleet.vllm, config.fleet.scale.max
    own = "the embedded engine"
    if vllm is not None:
        own = f"up to {most} vLLM with {vllm.model}"
    elif config.fleet.every:
        own = _count(len(config.fleet.every), "pool")
    parts = [_count(len(config.replicas), "replica")] if config.replicas else []
    return " and ".join([*parts, *([own] if config.fleet.every or not config.replicas else [])])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _called(replica: Replica) -> Replica:
    """Returns the replica with an id and its address in one spelling."""
    url = replica.url
    if not url.startswith("unix:"):  # a client's base URL ends in /v1
        url = url.rstrip("/").removesuffix("/v1").rstrip("/")
    return replace(replica, url=url, id=replica.id or replica_id(url))


# -- reading ----------------------------------------------------------------------------------------------


@cache
def hints_of(cls: type) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True) | BOUNDS.get(cls, {})


class _Reader:
    """One reading of one file. A method returns BAD after it has noted a problem, and continues to find more."""

    def __init__(self, *, reads_files: bool = False) -> None:
        """`reads_files`: secrets may be given as files."""
        self._reads_files = reads_files
        self.problems: list[tuple[int, str]] = []
        self.lines: dict[str, int] = {"": 1}
        """The line of every path for which the file gives a value."""

    def problem(self, path: str, text: str, line: int | None = None) -> Any:
        known = path
        while line is None:
            line = self.lines.get(known)
            known = known[: max(known.rfind("."), known.rfind("["), 0)]
        self.problems.append((line, f"{path}: {text}" if path else text))
        return BAD

    def gateway(self, root: yaml.Node | None) -> Any:
        readers = {
            "lanes": self.lanes,
            "tenants": self.tenants,
            "anonymous": self.anonymous,
            "tiers": self.tiers,
            "replicas": self.replicas,
            "output": self.output,
            "routing": self.routing,
        }
        config = self.record(GatewayConfig, root, "", readers=readers) if root else GatewayConfig()
        if config is BAD:
            return BAD
        if "anonymous.allowed" not in self.lines:
            config = replace(config, anonymous=replace(config.anonymous, allowed=not config.has_keys))
        if config.embedded is None and (
            config.fleet.runs_engines or (not config.replicas and not config.fleet.runs_vllm)
        ):
            config = replace(config, embedded=EngineConfig())
        if config.fleet.pools:
            price = config.observe.price_per_replica_hour
            pools = with_defaults(config.fleet.pools, config.lanes, price, self.lines)
            config = replace(config, fleet=replace(config.fleet, pools=pools))
        return config

    def lanes(self, node: yaml.Node, path: str) -> Any:
        given = self.named(node, path, self.lane)
        return BAD if given is BAD else tuple((LANES | given).values())

    def lane(self, name: str, node: yaml.Node, path: str) -> Any:
        default = LANES.get(name)
        defaults = {one.name: getattr(default, one.name) for one in fields(Lane)} if default else {"wait_bound_s": 0.0}
        lane = self.record(Lane, node, path, fixed={"name": name}, defaults=defaults)
        if lane is BAD or join(path, "ttft_target_s") not in self.lines or join(path, "wait_bound_s") in self.lines:
            return lane
        share = default.wait_bound_s / default.ttft_target_s if default else WAIT_SHARE
        return replace(lane, wait_bound_s=lane.ttft_target_s * share)

    def tenants(self, node: yaml.Node, path: str) -> Any:
        given = self.named(node, path, lambda name, child, at: self.record(Tenant, child, at, fixed={"name": name}))
        return BAD if given is BAD else tuple(given.values())

    def tiers(self, node: yaml.Node, path: str) -> Any:
        given = self.named(node, path, self.tier)
        return BAD if given is BAD else tuple((TIERS | given).values())

    def tier(self, name: str, node: yaml.Node, path: str) -> Any:
        if name not in TIERS:
            return self.problem(path, f"no tier is called {name}; {did_you_mean(name, list(TIERS))}")
        defaults = {one.name: getattr(TIERS[name], one.name) for one in fields(Tier)}
        return self.record(Tier, node, path, fixed={"name": name}, defaults=defaults)

    def output(self, node: yaml.Node, path: str) -> Any:
        return self.record(OutputConfig, node, path, readers={"tasks": self.tasks})

    def tasks(self, node: yaml.Node, path: str) -> Any:
        given = self.named(node, path, self.task)
        return BAD if given is BAD else TASKS | given

    def task(self, name: str, node: yaml.Node, path: str) -> Any:
        default = TASKS.get(name, TASKS[OTHER])
        return self.record(
            TaskConfig, node, path, defaults={one.name: getattr(default, one.name) for one in fields(TaskConfig)}
        )

    def routing(self, node: yaml.Node, path: str) -> Any:
        return self.record(RoutingConfig, node, path, readers={"weights": self.weights})

    def weights(self, node: yaml.Node, path: str) -> Any:
        given = self.named(node, path, self.weight)
        return BAD if given is BAD else ROUTE_WEIGHTS | given

    def weight(self, name: str, node: yaml.Node, path: str) -> Any:
        if name not in ROUTE_WEIGHTS:
            return self.problem(path, f"no score is called {name}; {did_you_mean(name, list(ROUTE_WEIGHTS))}")
        return self.value(WeightOrZero, node, path)

    def anonymous(self, node: yaml.Node, path: str) -> Any:
        return self.record(Tenant, node, path, fixed={"name": ANONYMOUS.name, "key_sha256": ()})

    def replicas(self, node: yaml.Node, path: str) -> Any:
        def replica(child: yaml.Node, at: str) -> Any:
            found = self.record(Replica, child, at, defaults={"id": ""})
            return found if found is BAD else _called(found)

        return self.sequence(tuple[Replica, ...], node, path, replica)

    def value(self, hint: Any, node: yaml.Node, path: str) -> Any:
        if get_origin(hint) in (Union, UnionType):
            if plain(node) is None:
                return None
            (hint,) = (one for one in get_args(hint) if one is not NoneType)
        if is_dataclass(hint):
            return self.record(hint, node, path)
        if get_origin(hint) in (tuple, frozenset):
            return self.sequence(hint, node, path, lambda child, at: self.value(get_args(hint)[0], child, at))
        if get_origin(hint) is dict:
            return self.named(node, path, lambda _, child, at: self.value(get_args(hint)[1], child, at))
        value = scalar(hint, node)
        return value if value is not BAD else self.unexpected(hint, node, path)

    def unexpected(self, hint: Any, node: yaml.Node, path: str) -> Any:
        said = advice(hint, node.value) if isinstance(node, yaml.ScalarNode) else ""
        return self.problem(path, f"expected {expected(hint)}, got {got(hint, node)}{said}")

    def record(
        self,
        cls: Any,
        node: yaml.Node,
        path: str,
        *,
        fixed: Mapping[str, Any] = {},
        defaults: Mapping[str, Any] = {},
        readers: Mapping[str, Callable[[yaml.Node, str], Any]] = {},
    ) -> Any:
        """Reads a dataclass. The file may not set `fixed` fields."""
        given = self.entries(cls, node, path)
        if given is BAD:
            return BAD
        values: dict[str, Any] = {**defaults, **fixed}
        hints = {one.name: hints_of(cls)[one.name] for one in fields(cls) if one.name not in fixed}
        for key, child in given.items():
            at, base = join(path, key), key.removesuffix(SUFFIX)
            if key not in hints and self._reads_files and base != key and is_secret(hints.get(base)):
                both = base in given
                values[base] = (
                    self.problem(at, f"give {base} or {key}, not both")
                    if both
                    else self.from_file(hints[base], child, at)
                )
            elif key not in hints:
                values[key] = self.problem(at, f"unknown key; {did_you_mean(key, list(hints))}")
            elif key in readers:
                values[key] = readers[key](child, at)
            else:
                values[key] = self.value(hints[key], child, at)
        for one in fields(cls):
            if one.name not in values and one.default is MISSING and one.default_factory is MISSING:
                at = join(path, one.name)
                values[one.name] = self.problem(at, f"missing; expected {expected(hints[one.name])}")
        return BAD if any(value is BAD for value in values.values()) else cls(**values)

    def from_file(self, hint: Any, node: yaml.Node, path: str) -> Any:
        """Reads a secret from the file whose path the config gives: of a mapping, each value from one of its own."""
        if get_origin(hint) in (Union, UnionType):
            (hint,) = (one for one in get_args(hint) if one is not NoneType)
        if get_origin(hint) is dict:
            return self.named(node, path, lambda _, child, at: self.from_file(get_args(hint)[1], child, at))
        place = scalar(Path, node)
        if place is BAD:
            return self.unexpected(Path, node, path)
        try:
            lines = read_lines(place)
        except Unusable as error:
            return self.problem(path, str(error))
        several = get_origin(hint) is tuple
        inner = get_args(hint)[0] if several else hint
        wrong = [line for line in lines if not get_args(inner)[1].allows(line)]
        if wrong or (len(lines) > 1 and not several):
            said = advice(inner, wrong[0]) if wrong else ""
            of = "in each line of" if several else "in"
            return self.problem(path, f"expected {expected(inner)} {of} {place}, got something else{said}")
        return tuple(lines) if several else lines[0]

    def named(self, node: yaml.Node, path: str, read: Callable[[str, yaml.Node, str], Any]) -> Any:
        """Reads a mapping whose keys are names."""
        given = self.entries(dict[str, str], node, path)
        if given is BAD:
            return BAD
        values = {}
        for name, child in given.items():
            at = join(path, name)
            sane = get_args(Name)[1].allows(name)
            values[name] = read(name, child, at) if sane else self.problem(at, f"expected a name {expected(Name)[5:]}")
        return BAD if any(value is BAD for value in values.values()) else values

    def sequence(self, hint: Any, node: yaml.Node, path: str, read: Callable[[yaml.Node, str], Any]) -> Any:
        if not isinstance(node, yaml.SequenceNode) or node.tag != LIST:
            return self.unexpected(hint, node, path)
        values = []
        for index, child in enumerate(node.value):
            at = f"{path}[{index}]"
            self.lines[at] = child.start_mark.line + 1
            values.append(read(child, at))
        if any(value is BAD for value in values):
            return BAD
        if get_origin(hint) is frozenset and len(set(values)) < len(values):
            return self.problem(path, "expected no name twice")
        return get_origin(hint)(values)

    def entries(self, hint: Any, node: yaml.Node, path: str) -> Any:
        """The keys and nodes of a mapping: each key is text and occurs once."""
        if not isinstance(node, yaml.MappingNode) or node.tag != MAPPING:
            return self.unexpected(hint, node, path)
        given: dict[str, yaml.Node] = {}
        for key_node, child in node.value:
            key, line = plain(key_node), key_node.start_mark.line + 1
            if not isinstance(key, str):
                self.problem(path, f"expected keys that are text, got {got(str, key_node)}", line)
            elif key in given:
                at = join(path, key)
                self.problem(at, f"given twice, first on line {self.lines[at]}", line)
            else:
                given[key] = child
                self.lines[join(path, key)] = line
        return given
