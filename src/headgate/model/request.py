"""Defines a Request as the gateway's policies see it. A Request is frozen; events tell what happens to it."""

from typing import Any, Final

from headgate.model.tier import DEFAULT_TIER

FIELDS: Final = (
    "id", "arrived", "model", "lane", "priority", "tenant", "weight", "tier", "prompt_tokens", "max_output",
    "wait_until", "first_token_by", "stream", "prefix", "session", "unfit", "fallback", "choices",
    "pinned",
)  # fmt: skip
NOBODY: Final[frozenset[str]] = frozenset()


class Request:
    """A client's request. Written out, and not a dataclass or a Struct: one is made per request and its fields are read
    a hundred times, which in the compiled copy costs a tenth."""

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
        tier: str = DEFAULT_TIER,
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
        """When the request's first byte was read."""
        self.model: Final = model
        self.lane: Final = lane
        self.priority: Final = priority
        """0 goes first. The lane's priority unless a trusted client set another."""
        self.tenant: Final = tenant
        self.weight: Final = weight
        """The tenant's relative share within the lane."""
        self.tier: Final = tier
        self.prompt_tokens: Final = prompt_tokens
        """Prompt tokens: exact where the tokenizer is at hand, estimated otherwise."""
        self.max_output: Final = max_output
        """Output tokens of all choices together: the allowed maximum, or what such requests usually produce if that is
        less."""
        self.wait_until: Final = wait_until
        """Latest moment to leave the gateway's queue for a replica."""
        self.first_token_by: Final = first_token_by
        self.stream: Final = stream
        self.prefix: Final = prefix
        """Hash chain over the messages: equal prefixes of two chains are equal beginnings of two conversations."""
        self.session: Final = session
        """Requests of one session prefer one replica."""
        self.unfit: Final = unfit
        """Replicas whose engine lacks a feature that the request uses, whatever their model."""
        self.fallback: Final = fallback
        """Models that may answer, in this order, while no replica of the request's own model is usable: other versions
        of the name that the client asked for."""
        self.choices: Final = choices
        """Answers asked for at once, n for each prompt: each is a sequence with its own slot in the engine."""
        self.pinned: Final = pinned
        """No other model may answer, and the request does not wait for its own: with no usable replica it is
        refused."""

    @property
    def tokens(self) -> int:
        """Expected cost in tokens, prompt and output together."""
        return self.prompt_tokens + self.max_output

    @property
    def output_each(self) -> int:
        """Expected output tokens of each choice."""
        return self.max_output if self.choices == 1 else max(1, self.max_output // self.choices)

    def but(self, **changes: Any) -> "Request":
        """Returns a copy with these fields changed."""
        return Request(**{**self.fields(), **changes})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and self.fields() == other.fields()

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Request({', '.join(f'{name}={value!r}' for name, value in self.fields().items())})"

    def fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in FIELDS}
