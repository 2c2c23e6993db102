"""Describes how to talk to each kind of engine, in one table.

Read from the engines' own sources (vLLM a014e35, SGLang cce0a12, TGI db931fc, llama.cpp b21e4de, Triton's OpenAI
frontend e1db8a6, TensorRT-LLM's `serve/` and `metrics/`), not from memory. All of them stop a generation when its
connection closes, and the gateway cancels that way; anything beyond that is in the table.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Literal, Protocol
from urllib.parse import quote

from headgate.model.lane import LANES, Lane
from headgate.model.replica import Replica
from headgate.model.request import Request
from headgate.model.tier import Tier
from headgate.replica.fields import OWN

LONGEST_SESSION: Final = 128

Continue = Literal["pieces", "flags", "flag", "message", "trimmed"]
"""How an engine continues a reply that broke off. `pieces`: it takes the pieces in which the reply came, makes exactly
the tokens of them that were said, and counts them itself. Otherwise the text is the last message, with these
differences:

flags    continue_final_message, without the generation prompt
flag     continue_final_message alone
message  nothing more: the engine continues a last message of the assistant's
trimmed  the same, but white space at its end is lost, so there must be none
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """The highest values that are accepted: what OpenAI documents, unless an engine is known to accept more."""

    temperature: float = 2.0
    n: int = 128
    stops: int = 4
    text_logprobs: int = 5
    """`logprobs` of a text completion; a chat's `top_logprobs` are 20 everywhere."""
    tools: int = 128


OPENAI_RANGES: Final = Ranges()
MANY_STOPS: Final = Ranges(temperature=inf, stops=1024, text_logprobs=20, tools=1024)
"""For engines that bound none of these themselves. The lane's own bounds apply too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    kind: str
    name: str
    """Name for messages."""
    owned_by: str | None = None
    """The owner in the engine's list of models, by which the engine is recognised; None: it has no such name."""
    health: tuple[str, ...] = ("/health", "/v1/models")
    """Paths that say whether the engine can be used; the first that exists is asked."""
    live: str | None = None
    """Path that is cheaper to ask every second than its health; None: the health path is cheap."""
    deep: str | None = None
    """Path that generates a token; None, or not there: a completion of one token is requested."""
    metrics: str | None = "/metrics"
    """Path of metrics in Prometheus's text form; None: there are none to look for."""
    prefix: str | None = None
    """Prefix of the engine's metric names; None: unknown."""
    head: bytes = b""
    """Header lines for every request."""
    session: bytes | None = None
    """Header for a stable name of the conversation."""
    priority: Callable[[int], float] | None = None
    """Converts our priority, where 0 goes first, to its own. Only for replicas configured to heed it: others refuse
    it."""
    strict: bool = False
    """Whether the engine refuses a request with a field that it does not know."""
    abort: str | None = None
    """Path for telling that a request is cancelled; None: closing its connection is enough."""
    chat_continued: Continue | None = None
    """How the engine continues a chat; None: it cannot. A text completion can always be continued: its prompt is the
    original one plus the text so far."""
    load_adapter: str | None = None
    """Path that takes lora_name and lora_path; None: adapters are given at its start, or with each request."""
    warms_itself: bool = False
    """Whether the engine's health is good only after its own warm-up."""
    embeddings: bool = True
    """Whether the engine has /v1/embeddings, or that is unknown. The engine refuses if its model cannot embed."""
    ranges: Ranges = OPENAI_RANGES
    """The highest values that the engine accepts, where they go beyond OpenAI's."""
    promises: bool = False
    """Whether the engine takes lane, priority and targets of a request as fields, and the bounds of its answer (time,
    repetition), which it then keeps itself."""
    takes_default: bool = False
    """Whether the engine takes `default` for its model."""
    any_model: bool = False
    """Whether the engine serves models that its list does not name, such as adapters."""
    responses: bool | None = True
    """Whether the engine has /v1/responses; None: unknown. Engines that are not known to have it get a chat instead,
    where that means the same."""


DIALECTS: Final[dict[str, Dialect]] = {
    one.kind: one
    for one in (
        Dialect(
            kind="headgate", name="Headgate's engine", owned_by="headgate", health=("/health/ready",),
            deep="/health/deep", prefix="headgate_engine_", head=b"x-headgate-timings: 1\r\n",
            chat_continued="pieces", warms_itself=True, embeddings=False, responses=False, promises=True,
            takes_default=True, ranges=Ranges(stops=16, text_logprobs=20, tools=1024),
        ),
        Dialect(
            # Any priority but 0 is an error without --scheduling-policy priority. Adapters can be loaded only where
            # VLLM_ALLOW_RUNTIME_LORA_UPDATING is set.
            kind="vllm", name="vLLM", owned_by="vllm", prefix="vllm:", session=b"x-session-id",
            priority=lambda ours: ours, chat_continued="flags", load_adapter="/v1/load_lora_adapter",
            ranges=MANY_STOPS,
        ),
        Dialect(
            # Its /health generates too, and takes at least a second. Higher priorities go first. A closed connection is
            # noticed only every 4 s unless the answer is streamed, so that cancelling is also told to /abort_request.
            kind="sglang", name="SGLang", owned_by="sglang", live="/v1/models", deep="/health_generate",
            prefix="sglang:", session=b"x-smg-routing-key", priority=lambda ours: -ours, abort="/abort_request",
            chat_continued="flag", load_adapter="/load_lora_adapter", ranges=MANY_STOPS,
        ),
        Dialect(  # Its list of models gives the model's own name as owner: /info tells. `model` names an adapter.
            kind="tgi", name="TGI", prefix="tgi_", chat_continued="trimmed", embeddings=False, responses=False,
            any_model=True,
        ),
        Dialect(
            # /metrics are statistics of iterations, which are gone once read. Priorities are 0 to 1, higher first.
            # Adapters are a field of each request (lora_request).
            kind="tensorrt_llm", name="TensorRT-LLM", owned_by="tensorrt_llm", deep="/health_generate",
            metrics="/prometheus/metrics", prefix="trtllm_", session=b"x-session-id", strict=True,
            priority=lambda ours: min(1.0, max(0.0, 0.5 - ours / 200)),
        ),
        Dialect(  # Adapters are models with a name of their own, given at its start.
            kind="triton", name="Triton", owned_by="Triton Inference Server",
            health=("/health/ready", "/v2/health/ready", "/health", "/v1/models"), prefix="nv_", strict=True,
            responses=False,
        ),
        Dialect(  # 503 while it loads. Adapters are given at its start, and their scale is set at /lora-adapters.
            kind="llama_cpp", name="llama.cpp's server", owned_by="llamacpp", prefix="llamacpp:",
            chat_continued="message", ranges=MANY_STOPS,
        ),
        Dialect(kind="openai", name="an OpenAI server", metrics=None, responses=None),
    )
}  # fmt: skip
PLAIN: Final = DIALECTS["openai"]


def dialect_of(replica: Replica) -> Dialect:
    """The dialect of the replica's kind; while the kind is unknown, that of a plain OpenAI server."""
    return DIALECTS.get(replica.kind or "", PLAIN)


# -- what a request becomes -------------------------------------------------------------------------------


class Trust(Protocol):
    @property
    def trusted(self) -> bool: ...


class Asked(Protocol):
    """A request as the gateway understood it."""

    @property
    def request(self) -> Request: ...
    @property
    def body(self) -> dict[str, Any]: ...
    @property
    def tenant(self) -> Trust: ...


Shape = Callable[[Asked, Lane, Tier, str], dict[str, Any]]
"""Makes the body for one replica. The text names this attempt, should it be cancelled."""


def shape_for(replica: Replica) -> Shape | None:
    """None: the body goes as it is. Decided once per replica, not per request."""
    dialect = dialect_of(replica)
    if dialect.promises:
        return with_promises
    told = dialect.priority if replica.priority else None
    if told is None and not dialect.strict and dialect.priority is None and dialect.abort is None:
        return None

    def shape(asked: Asked, lane: Lane, tier: Tier, call: str) -> dict[str, Any]:
        body = asked.body
        if asked.tenant.trusted and any(name in body for name in OWN):
            body = {name: value for name, value in body.items() if name not in OWN}
        if told is not None:
            body = {**body, "priority": told(asked.request.priority)}
        if dialect.abort is not None:
            body = {**body, "rid": call}
        return body

    return shape


def with_promises(asked: Asked, lane: Lane, tier: Tier, call: str) -> dict[str, Any]:
    """Adds the lane's promises, which Headgate's engine takes with the request."""
    request = asked.request
    extra: dict[str, Any] = {
        "lane": request.lane if request.lane in LANES else "slow",
        "priority": request.priority,
        "ttft_target_ms": lane.ttft_target_s * 1e3,
        "tpot_target_ms": lane.gap_target_s * 1e3,
    }
    if tier.longest_neighbour is not None:
        extra["longest_neighbour"] = tier.longest_neighbour
    return {**asked.body, **extra}


def session_line(dialect: Dialect, session: str) -> bytes:
    """The header line with the session's name, quoted, since a client may send any text."""
    assert dialect.session is not None
    return b"%b: %b\r\n" % (dialect.session, quote(session[:LONGEST_SESSION]).encode())


# -- going on with a reply --------------------------------------------------------------------------------


def can_continue(path: str, body: dict[str, Any]) -> bool:
    """Whether some kind of replica could continue a stream of this request: Headgate's engine can continue whatever any
    other kind can. Asked for every stream, so nothing is built."""
    if not _alone(body):
        return False
    if path.endswith("/chat/completions"):
        return True
    if not path.endswith("/completions"):
        return False
    prompt = body.get("prompt")
    return isinstance(prompt, str) or (isinstance(prompt, list) and all(isinstance(token, int) for token in prompt))


def _alone(body: dict[str, Any]) -> bool:
    """Whether a body asks for one choice of plain text: of several choices only one is known, and a tool call would
    begin again."""
    return (body.get("n") or 1) == 1 and not body.get("tools") and not body.get("functions")


def continued(
    kind: str | None, path: str, body: dict[str, Any], said: str, tokens: int, pieces: Sequence[str] = ()
) -> dict[str, Any] | None:
    """The body with which another replica continues after `said`, which was `tokens` tokens long and came in `pieces`.
    None: that kind can't continue it, or the client would notice: a tool call would begin again, and with most engines
    a grammar too. For streams only: of a whole answer the client has seen nothing yet, and llama.cpp's repeats what was
    said."""
    dialect = DIALECTS.get(kind or "", PLAIN)
    if dialect.chat_continued == "pieces":
        return {**body, "continued": list(pieces or (said,))} if can_continue(path, body) else None
    if not _alone(body) or body.get("response_format"):
        return None
    going: dict[str, Any] | None
    if path.endswith("/chat/completions"):
        going = _chat(dialect, body, said)
    elif path.endswith("/completions"):
        going = _text(body, said)
    else:
        return None
    if going is not None:
        for name in ("max_tokens", "max_completion_tokens"):
            if isinstance(going.get(name), int):
                going[name] = max(1, going[name] - tokens)
    return going


def _chat(dialect: Dialect, body: dict[str, Any], said: str) -> dict[str, Any] | None:
    how = dialect.chat_continued
    if how is None or (how == "trimmed" and said != said.rstrip()):
        return None
    messages: list[dict[str, Any]] = list(body["messages"])
    if body.get("continue_final_message"):  # the client itself continues a message: it stays the same message
        before = messages.pop().get("content")
        if not isinstance(before, str):
            return None
        said = before + said
    elif messages[-1].get("role") == "assistant":
        return None  # engines differ in how they treat two in a row
    going = {**body, "messages": [*messages, {"role": "assistant", "content": said}]}
    if how in ("flags", "flag"):
        going["continue_final_message"] = True
    if how == "flags":
        going["add_generation_prompt"] = False
    return going


def _text(body: dict[str, Any], said: str) -> dict[str, Any] | None:
    prompt = body.get("prompt")
    if not isinstance(prompt, str) or any(body.get(name) for name in ("echo", "suffix", "best_of")):
        return None  # token ids would have to be made from the text, by the engine's own tokenizer
    return {**body, "prompt": prompt + said}
