"""What is to be said of a route: the nouns that the description of the API is made of."""

from dataclasses import dataclass, field
from typing import Any, Literal

Who = Literal["client", "admin", "anybody"]
"""client: a tenant's key, where tenants have keys. admin: an admin key, or none for clients on this machine while
nobody has a key and only this machine is listened to."""
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
    """Unique: OpenAPI's operationId."""
    summary: str
    about: str = ""
    who: Who = "client"
    path: str | None = None
    """As people write it, with what stands for `*`; None: just as it is."""
    parameters: tuple[Parameter, ...] = ()
    body: Schema | None = None
    body_needed: bool = True
    example: Any = None
    """A body."""
    answer: Schema | None = None
    """None: it is not JSON."""
    content_type: str = "application/json"
    streams: str = ""
    """What the events of a streamed answer are."""
    status: int = 200
    errors: tuple[int, ...] = ()


Operations = dict[tuple[str, str], Operation]
"""(method, path) as the router has them."""


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}
