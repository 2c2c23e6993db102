"""A client's ask, as the gateway's policies see it. Frozen: what happens to it is told by events."""

from typing import Any, Final

FIELDS: Final = (
    "id", "arrived", "model", "lane", "priority", "tenant", "weight", "tier", "prompt_tokens", "max_output",
    "wait_until", "first_token_by", "stream", "prefix", "session", "unfit", "fallback", "choices",
    "pinned",
)  # fmt: skip
NOBODY: Final[frozenset[str]] = frozenset()


class Request:
    """Written out, and not a dataclass or a Struct: one is made per request and its fields are read a hundred times, at
    a tenth of the cost where this is compiled."""

    __slots__ = FIELDS

    def __init__(
        self,
        *,
        id: str,
        arrived: float,
        model: str,
        lane: str,
        priority: int,
        wait_until: float,
        first_token_by: float,
        tenant: str = "anonymous",
        weight: float = 1.0,
        tier: str = "free",
        prompt_tokens: int = 1,
        max_output: int = 256,
        stream: bool = True,
        prefix: tuple[bytes, ...] = (),
        session: str | None = None,
        unfit: frozenset[str] = NOBODY,
        fallback: tuple[str, ...] = (),
        choices: int = 1,
        pinned: bool = False,
    ) -> None:
        self.id: Final = id
        self.arrived: Final = arrived
        """When its first byte was read."""
        self.model: Final = model
        self.lane: Final = lane
        self.priority: Final = priority
        """0 goes first; the lane's own unless a trusted client said otherwise."""
        self.tenant: Final = tenant
        self.weight: Final = weight
        """The tenant's share within the lane."""
        self.tier: Final = tier
        self.prompt_tokens: Final = prompt_tokens
        """Exact where the tokenizer is at hand, estimated otherwise."""
        self.max_output: Final = max_output
        """What it may say at most, or what such requests usually say if that is less; all its choices together."""
        self.wait_until: Final = wait_until
        """Latest moment to leave the gateway's queue for a replica."""
        self.first_token_by: Final = first_token_by
        self.stream: Final = stream
        self.prefix: Final = prefix
        """Hash chain over its messages: equal prefixes of two chains are equal beginnings of two conversations."""
        self.session: Final = session
        """Requests of one session prefer one replica."""
        self.unfit: Final = unfit
        """Replicas whose engine has no such thing as what it asks for, whatever their model."""
        self.fallback: Final = fallback
        """Models that may answer in place of its own while no replica of that one is usable, the first before the next:
        other versions of the name that was asked for."""
        self.choices: Final = choices
        """Answers it asks for at once, n for each of its prompts: each is a sequence in the engine, with a slot."""
        self.pinned: Final = pinned
        """Nobody may stand in for its model, and nobody waits for it: with no replica of it usable it is refused."""

    @property
    def tokens(self) -> int:
        """What it will cost, prompt and output together."""
        return self.prompt_tokens + self.max_output

    @property
    def output_each(self) -> int:
        """What each of its choices is expected to say."""
        return self.max_output if self.choices == 1 else max(1, self.max_output // self.choices)

    def but(self, **changes: Any) -> "Request":
        """The same, but for this."""
        return Request(**{**self.fields(), **changes})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and self.fields() == other.fields()

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Request({', '.join(f'{name}={value!r}' for name, value in self.fields().items())})"

    def fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in FIELDS}
