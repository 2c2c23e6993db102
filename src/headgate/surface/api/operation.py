"""Defines the description of a route, from which the API's documents are made."""

from dataclasses import dataclass, field
from typing import Any, Literal

Who = Literal["client", "admin", "anybody"]
"""client: a tenant's key, where tenants have keys. admin: an admin key, or none for clients on this machine while
neither a tenant nor an admin has a key and only this machine is listened to. anybody: no key."""
Schema = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    name: str
    about: str
    where: Literal["query", "path", "header"] = "query"
    schema: Schema = field(default_factory=lambda: {"type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    tag: str
    name: str
    """OpenAPI's operationId; unique."""
    summary: str
    about: str = ""
    who: Who = "client"
    path: str | None = None
    """The path for people, with names for `*`; None: as the router has it."""
    parameters: tuple[Parameter, ...] = ()
    body: Schema | None = None
    body_needed: bool = True
    body_type: str = "application/json"
    example: Any = None
    """An example body; None: there is none."""
    answer: Schema | None = None
    """The answer's schema; None: the answer is not JSON."""
    content_type: str = "application/json"
    streams: str = ""
    """The events of a streamed answer; empty: the answer is never streamed."""
    status: int = 200
    errors: tuple[int, ...] = ()


Operations = dict[tuple[str, str], Operation]
"""Descriptions by (method, path) as the router has them."""


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}
