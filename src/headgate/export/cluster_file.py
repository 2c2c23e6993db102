"""Adapts the gateway's config file to a cluster: changes addresses and replicas, and nothing else.

The YAML nodes are edited, not the values, so that every other entry is still written as it was: other readers take
`no`, `1:30` or `0777` for something else than config/file.py does.
"""

import yaml


def in_cluster(text: str, engines: str, port: int, engine_port: int, scaled_here: bool) -> str:
    """The config text with the gateway listening on all addresses and pods as its replicas. Comments are lost."""
    root = yaml.compose(text) if text.strip() else None
    if root is None:
        root = yaml.MappingNode("tag:yaml.org,2002:map", [])
    assert isinstance(root, yaml.MappingNode)  # config/file.py has read it
    for key in ("replicas", "embedded"):
        root.value = [(name, value) for name, value in root.value if name.value != key]
    listen = _child(root, "listen")
    _put(listen, "host", "0.0.0.0")
    _put(listen, "port", port)
    fleet = _child(root, "fleet")
    _put(fleet, "kind", "kubernetes")
    place = _child(fleet, "kubernetes")
    _put(place, "name", engines)
    _put(place, "port", engine_port)
    _put(place, "scaled_here", scaled_here)
    return str(yaml.serialize(root, Dumper=yaml.SafeDumper, width=1000, allow_unicode=True))


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
