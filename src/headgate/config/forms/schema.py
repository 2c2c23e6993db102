"""Derives a JSON Schema of the config file from the config classes, for editors: keys, types, bounds, defaults and what
each setting means.

Draft 2020-12. The schema says what a single value may be; contradictions between two values are found by
`headgate serve --check` alone. Any value may also be `${NAME}`, an environment variable.
"""

import ast
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from headgate import __file__ as PACKAGE_FILE
from headgate.config.file import hints_of
from headgate.config.forms.durations import PATTERN
from headgate.config.forms.secrets import SUFFIX, is_secret
from headgate.config.gateway import ANONYMOUS, ROUTE_WEIGHTS, GatewayConfig, RoutingConfig, Tenant
from headgate.config.hints import Check, Name, WeightOrZero
from headgate.config.output import TASKS, OutputConfig, TaskConfig
from headgate.model.lane import LANES, Lane
from headgate.model.replica import Replica
from headgate.model.tier import TIERS, Tier

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
REFERENCE: Schema = {"type": "string", "pattern": r"\$\{"}
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", Path: "string"}


def schema() -> Schema:
    definitions: dict[str, Schema] = {
        "variable": {**REFERENCE, "description": "${NAME} or ${NAME:-default}: an environment variable"}
    }
    root = _Classes(definitions).record(GatewayConfig)
    return {"$schema": DIALECT, "title": "Headgate's config file", **root, "$defs": dict(sorted(definitions.items()))}


class _Classes:
    """Describes config classes, each once under $defs."""

    def __init__(self, definitions: dict[str, Schema]) -> None:
        self._definitions = definitions

    def record(
        self, cls: Any, *, fixed: Mapping[str, Any] = {}, optional: bool = False, given: frozenset[str] = frozenset()
    ) -> Schema:
        """A mapping of the class's fields. `fixed`: fields that the file may not set; `optional`: none is required;
        `given`: fields that have a default although the class has none."""
        documents, hints = documents_of(cls), hints_of(cls)
        properties: dict[str, Schema] = {}
        required = []
        for one in fields(cls):
            if one.name in fixed:
                continue
            own = self._own(cls, one.name)
            described = self.value(hints[one.name]) if own is None else own
            properties[one.name] = _documented(described, documents.get(one.name, ""), one)
            if is_secret(hints[one.name]):
                properties[one.name + SUFFIX] = _file_of(hints[one.name], one.name)
            if one.default is MISSING and one.default_factory is MISSING and one.name not in given:
                required.append(one.name)
        made: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
        return made if optional or not required else {**made, "required": required}

    def _own(self, cls: Any, name: str) -> Schema | None:
        """The fields that the file writes in another shape than the class; None: it does not."""
        makers: dict[tuple[Any, str], Callable[[], Schema]] = {
            (GatewayConfig, "lanes"): self._lanes,
            (GatewayConfig, "tenants"): lambda: _mapping(self._defined("Tenant", Tenant, fixed={"name": ""})),
            (GatewayConfig, "anonymous"): lambda: self._defined(
                "Anonymous", Tenant, fixed={"name": ANONYMOUS.name, "key_sha256": ()}
            ),
            (GatewayConfig, "tiers"): lambda: _closed(
                {name: self._defined("Tier", Tier, fixed={"name": ""}, optional=True) for name in TIERS}
            ),
            (GatewayConfig, "replicas"): lambda: _list(self._defined("Replica", Replica, given=frozenset(("id",)))),
            (OutputConfig, "tasks"): self._tasks,
            (RoutingConfig, "weights"): lambda: _closed(dict.fromkeys(ROUTE_WEIGHTS, self.value(WeightOrZero))),
        }
        maker = makers.get((cls, name))
        return None if maker is None else maker()

    def _lanes(self) -> Schema:
        known = self._defined("Lane", Lane, fixed={"name": ""}, optional=True)
        new = self._defined("NewLane", Lane, fixed={"name": ""}, given=frozenset(("wait_bound_s",)))
        return {**_mapping(new), "properties": dict.fromkeys(LANES, known)}

    def _tasks(self) -> Schema:
        task = self._defined("Task", TaskConfig, optional=True)
        return {**_mapping(task), "properties": dict.fromkeys(TASKS, task)}

    def _defined(self, name: str, cls: Any, **how: Any) -> Schema:
        if name not in self._definitions:
            self._definitions[name] = {}  # holds the place while the class is described
            self._definitions[name] = self.record(cls, **how)
        return {"$ref": f"#/$defs/{name}"}

    def value(self, hint: Any) -> Schema:
        origin = get_origin(hint)
        if origin in (Union, UnionType):
            (inner,) = (one for one in get_args(hint) if one is not NoneType)
            return {"anyOf": [self.value(inner), {"type": "null"}]}
        if is_dataclass(hint):
            return self._defined(hint.__name__, hint)  # type: ignore[union-attr]
        if origin in (tuple, frozenset):
            listed = _list(self.value(get_args(hint)[0]))
            return {**listed, "uniqueItems": True} if origin is frozenset else listed
        if origin is dict:
            return _mapping(self.value(get_args(hint)[1]))
        return _or_variable(scalar_schema(hint))


def scalar_schema(hint: Any) -> Schema:
    if get_origin(hint) is Literal:
        return {"enum": list(get_args(hint))}
    if get_origin(hint) is not Annotated:
        return {"type": _TYPES[hint]}
    base, check = get_args(hint)
    made = {**scalar_schema(base), **_bounds(check)}
    if check.duration:
        return {"anyOf": [made, {"type": "string", "pattern": rf"^\s*{PATTERN}\s*$"}]}
    return made


def _bounds(check: Check) -> Schema:
    made: Schema = {}
    if check.least is not None:
        made["exclusiveMinimum" if check.above else "minimum"] = check.least
    if check.most is not None:
        made["maximum"] = check.most
    if check.pattern is not None:
        made["pattern"] = f"^(?:{check.pattern})$"
    return made


def _or_variable(made: Schema) -> Schema:
    """Also allows an environment variable, where plain text would not do."""
    return made if made == {"type": "string"} else {"anyOf": [made, {"$ref": "#/$defs/variable"}]}


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def _mapping(value: Schema) -> Schema:
    names = get_args(Name)[1].pattern
    return {"type": "object", "propertyNames": {"pattern": f"^(?:{names})$"}, "additionalProperties": value}


def _closed(properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _file_of(hint: Any, name: str) -> Schema:
    several = get_origin(hint) is tuple
    holds = f"the values of {name}, one on each line" if several else f"the value of {name}"
    path: Schema = {"type": "string", "description": f"File that holds {holds}."}
    return _mapping(path) if get_origin(hint) is dict else path


def _documented(made: Schema, text: str, one: "Field[Any]") -> Schema:
    made = {**made, "description": text.replace("None", "null")} if text else dict(made)
    default = one.default
    if default is None or isinstance(default, bool | int | float | str):
        made["default"] = default
    return made


@cache
def documents_of(cls: type) -> dict[str, str]:
    """What the text below each field says, inherited fields included. Read from the source file: a compiled class has
    no source of its own."""
    place = Path(PACKAGE_FILE).parent.joinpath(*cls.__module__.split(".")[1:]).with_suffix(".py")
    (found,) = (
        node
        for node in ast.parse(place.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__
    )
    told: dict[str, str] = {}
    for base in cls.__bases__:
        if is_dataclass(base):
            told |= documents_of(base)
    for one, below in zip(found.body, found.body[1:], strict=False):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(below, ast.Expr):
            told[one.target.id] = " ".join(ast.literal_eval(below.value).split())
    return told
