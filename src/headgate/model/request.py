"""Defines a Request as the gateway's policies see it. A Request is frozen; events tell what happens to it."""

from typing import Any, Final

from headgate.model.tier import DEFAULT_TIER

FIELDS: Final = (
    "id", "arrived", "model", "lane", "priority", "tenant", "weight", "tier", "prompt_tokens", "max_output",
    "wait_until", "first_token_by", "stream", "prefix", "session", "unfit", "fallback", "choices",
    "pinned", "link_tokens", "uncached_tokens", "when_late", "relegated", "ttft_s", "tpot_s",
)  # fmt: skip
NOBODY: Final[frozenset[str]] = frozenset()


class Request:
    """A client's request. Written out, and not a dataclass or a Struct: one is made per request and its fields are read
    a hundred times, which in the compiled copy costs a tenth."""

    __slots__ = FIELDS

    id: Final[str]
    arrived: Final[float]
    """When the request's first byte was read."""
    model: Final[str]
    lane: Final[str]
    priority: Final[int]
    """0 goes first. The lane's priority unless a trusted client set another."""
    tenant: Final[str]
    weight: Final[float]
    """The tenant's relative share within the lane."""
    tier: Final[str]
    prompt_tokens: Final[int]
    """Prompt tokens: exact where the tokenizer is at hand, estimated otherwise."""
    max_output: Final[int]
    """Output tokens of all choices together: the allowed maximum, or what is usual if that is less."""
    wait_until: Final[float]
    """Latest moment to leave the gateway's queue for a replica."""
    first_token_by: Final[float]
    stream: Final[bool]
    prefix: Final[tuple[bytes, ...]]
    """Hash chain over the blocks of the prompt. Two prompts begin alike as far as their chains do."""
    session: Final[str | None]
    """Requests of one session prefer one replica."""
    unfit: Final[frozenset[str]]
    """Replicas whose engine lacks a feature that the request uses, whatever their model."""
    fallback: Final[tuple[str, ...]]
    """Models that may answer, in this order, while no replica of the request's own model is usable."""
    choices: Final[int]
    """Answers asked for at once, n for each prompt: each is a sequence with its own slot in the engine."""
    pinned: Final[bool]
    """No other model may answer: with no usable replica of its own the request is refused at once."""
    link_tokens: Final[float]
    """Prompt tokens that one link of `prefix` stands for; the last may stand for fewer."""
    uncached_tokens: Final[int]
    """Prompt tokens that the best replica was expected to compute when the request arrived."""
    when_late: Final[str]
    """What the client wishes to happen if the request can't be in time: refuse or relegate; empty: as its lane says."""
    relegated: Final[bool]
    """The request waits in a lower lane than its own."""
    ttft_s: Final[float | None]
    """Time to first token that the request itself promises; None: it has its lane's."""
    tpot_s: Final[float | None]
    """Time per further token that the request itself promises; None: it has its lane's."""

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
        link_tokens: float = 0.0,
        uncached_tokens: int | None = None,
        when_late: str = "",
        relegated: bool = False,
        ttft_s: float | None = None,
        tpot_s: float | None = None,
    ) -> None:
        self.id = id
        self.arrived = arrived
        self.model = model
        self.lane = lane
        self.priority = priority
        self.tenant = tenant
        self.weight = weight
        self.tier = tier
        self.prompt_tokens = prompt_tokens
        self.max_output = max_output
        self.wait_until = wait_until
        self.first_token_by = first_token_by
        self.stream = stream
        self.prefix = prefix
        self.session = session
        self.unfit = unfit
        self.fallback = fallback
        self.choices = choices
        self.pinned = pinned
        self.link_tokens = link_tokens
        self.uncached_tokens = prompt_tokens if uncached_tokens is None else uncached_tokens
        self.when_late = when_late
        self.relegated = relegated
        self.ttft_s = ttft_s
        self.tpot_s = tpot_s

    @property
    def tokens(self) -> int:
        """Expected cost in tokens that are computed: uncached prompt and output together."""
        return self.uncached_tokens + self.max_output

    @property
    def whole_tokens(self) -> int:
        """Tokens of the whole prompt and the expected output, whether computed or cached."""
        return self.prompt_tokens + self.max_output

    @property
    def output_each(self) -> int:
        """Expected output tokens of each choice."""
        return self.max_output if self.choices == 1 else max(1, self.max_output // self.choices)

    def but(self, **changes: Any) -> "Request":
        """Returns a copy with these fields changed. Of a changed number of prompt tokens all are computed, unless
        `uncached_tokens` says how many."""
        fields = self.fields()
        if "prompt_tokens" in changes:
            fields["uncached_tokens"] = None
        return Request(**{**fields, **changes})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and self.fields() == other.fields()

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Request({', '.join(f'{name}={value!r}' for name, value in self.fields().items())})"

    def fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in FIELDS}
