"""Makes of a request what each kind of engine takes, and continues a reply that broke off.

The table of kinds is in model/dialect.py.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol
from urllib.parse import quote

from headgate.model.dialect import XARGS, Dialect, dialect_of_kind
from headgate.model.lane import LANES, Lane
from headgate.model.replica import Replica
from headgate.model.request import Request
from headgate.model.tier import Tier
from headgate.replica.fields import OWN

LONGEST_SESSION: Final = 128


def dialect_of(replica: Replica) -> Dialect:
    """The dialect of the replica's kind; while the kind is unknown, that of a plain OpenAI server."""
    return dialect_of_kind(replica.kind)


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
    def uncached_tokens(self) -> int: ...
    @property
    def tenant(self) -> Trust: ...


Shape = Callable[[Asked, Lane, Tier, str], dict[str, Any]]
"""Makes the body for one replica. The text names this attempt, should it be cancelled."""


def shape_for(replica: Replica) -> Shape | None:
    """None: the body goes as it is. Decided once per replica, not per request."""
    dialect = dialect_of(replica)
    if dialect.keeps_bounds:
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
        if dialect.wishes is not None and ("messages" in body or "prompt" in body):
            body = _with_wishes(dialect.wishes, body, asked, lane)
        return body

    return shape


def _with_wishes(field: str, body: dict[str, Any], asked: Asked, lane: Lane) -> dict[str, Any]:
    """Adds what our scheduler inside an engine heeds. What a trusted key put into the field itself stays, but for these
    names."""
    request, given = asked.request, body.get(field)
    ttft_s = lane.ttft_target_s if request.ttft_s is None else request.ttft_s
    gap_s = lane.gap_target_s if request.tpot_s is None else request.tpot_s
    told = {
        XARGS["priority"]: request.priority,
        XARGS["ttft_ms"]: ttft_s * 1e3,
        XARGS["gap_ms"]: gap_s * 1e3,
        XARGS["uncached_tokens"]: asked.uncached_tokens,
    }
    if given is not None and not isinstance(given, dict):
        return body  # the engine refuses it
    return {**body, field: {**(given or {}), **told}}


def with_promises(asked: Asked, lane: Lane, tier: Tier, call: str) -> dict[str, Any]:
    """Adds the promises, the request's own or its lane's, which Headgate's engine takes with the request."""
    request = asked.request
    ttft_s = lane.ttft_target_s if request.ttft_s is None else request.ttft_s
    gap_s = lane.gap_target_s if request.tpot_s is None else request.tpot_s
    extra: dict[str, Any] = {
        "lane": request.lane if request.lane in LANES else "slow",
        "priority": request.priority,
        "ttft_target_ms": ttft_s * 1e3,
        "tpot_target_ms": gap_s * 1e3,
        "uncached_tokens": asked.uncached_tokens,
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
    dialect = dialect_of_kind(kind)
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
