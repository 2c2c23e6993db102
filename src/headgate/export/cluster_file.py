"""Adapts the gateway's config file to a cluster: changes addresses and pools, and nothing else.

The YAML nodes are edited, not the values, so that every other entry is still written as it was: other readers take
`no`, `1:30` or `0777` for something else than config/file.py does.
"""

from collections.abc import Sequence
from typing import NamedTuple

import yaml


class EngineEntry(NamedTuple):
    """What the mounted file says of a pool of engines."""

    workload: str
    port: int
    served_as: str | None
    """Put there; None: what the file says stays."""


STARTED_HERE = ("emulate", "vllm", "engine", "ray")
"""Settings of replicas that a gateway starts itself: in a cluster they are in the engines' own command line."""


def in_cluster(text: str, engines: Sequence[EngineEntry], port: int, scaled_here: bool) -> str:
    """The config text with the gateway listening on all addresses and pods as its pools' replicas. Comments are
    lost."""
    root = yaml.compose(text) if text.strip() else None
    if root is None:
        root = yaml.MappingNode("tag:yaml.org,2002:map", [])
    assert isinstance(root, yaml.MappingNode)  # config/file.py has read it
    _drop(root, "embedded")
    listen = _child(root, "listen")
    _put(listen, "host", "0.0.0.0")
    _put(listen, "port", port)
    fleet = _child(root, "fleet")
    pools = next((value for name, value in fleet.value if name.value == "pools"), None)
    for entry, place in zip(engines, [fleet] if pools is None else pools.value, strict=True):
        _put_pool(place, entry, scaled_here)
    return str(yaml.serialize(root, Dumper=yaml.SafeDumper, width=1000, allow_unicode=True))


def _put_pool(place: yaml.MappingNode, entry: EngineEntry, scaled_here: bool) -> None:
    place.flow_style = False
    _drop(place, *STARTED_HERE)
    _put(place, "kind", "kubernetes")
    if entry.served_as is not None:
        _put(place, "served_as", entry.served_as)
    workload = _child(place, "kubernetes")
    _drop(workload, "nodes")
    _put(workload, "name", entry.workload)
    _put(workload, "port", entry.port)
    _put(workload, "scaled_here", scaled_here)


def _drop(node: yaml.MappingNode, *keys: str) -> None:
    node.value = [(name, value) for name, value in node.value if name.value not in keys]


def _child(node: yaml.MappingNode, key: str) -> yaml.MappingNode:
    for name, value in node.value:
        if name.value == key and isinstance(value, yaml.MappingNode):
            value.flow_style = False
            return value
    made = yaml.MappingNode("tag:yaml.org,2002:map", [], flow_style=False)
    _set(node, key, made)
    return made


def _put(node: yaml.MappingNode, key: str, value: str | int | bool) -> None:
    tag = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "str"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    _set(node, key, yaml.ScalarNode(f"tag:yaml.org,2002:{tag}", text))


def _set(node: yaml.MappingNode, key: str, value: yaml.Node) -> None:
    name = yaml.ScalarNode("tag:yaml.org,2002:str", key)
    node.value = [(k, v) for k, v in node.value if k.value != key] + [(name, value)]
