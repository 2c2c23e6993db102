"""A client's ask, as the gateway's policies see it. Frozen: what happens to it is told by events."""

import msgspec


class Request(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    # A Struct, not a dataclass: one is made per request, and a frozen dataclass sets its fields one by one in Python.
    id: str
    arrived: float
    """When its first byte was read."""
    model: str
    lane: str
    priority: int
    """0 goes first; the lane's own unless a trusted client said otherwise."""
    tenant: str = "anonymous"
    weight: float = 1.0
    """The tenant's share within the lane."""
    tier: str = "free"
    prompt_tokens: int = 1
    """Exact where the tokenizer is at hand, estimated otherwise."""
    max_output: int = 256
    """What it may say at most, or what such requests usually say if that is less."""
    wait_until: float
    """Latest moment to leave the gateway's queue for a replica."""
    first_token_by: float
    stream: bool = True
    prefix: tuple[bytes, ...] = ()
    """Hash chain over its messages: equal prefixes of two chains are equal beginnings of two conversations."""
    session: str | None = None
    """Requests of one session prefer one replica."""

    @property
    def tokens(self) -> int:
        """What it will cost, prompt and output together."""
        return self.prompt_tokens + self.max_output
