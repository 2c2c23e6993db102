"""Reads /v1/responses requests that need no stored state, and rewrites them as chats for engines that only have chats.

The gateway stores no answers, so a request that refers to an earlier answer or asks for a later one is refused. An
engine that has /v1/responses gets the request without its null fields and with store: false. For all others a text
request becomes a chat that asks the same, and the answer is translated back (gateway/answer/response_voice.py).
"""

from collections.abc import Callable
from typing import Any, Final

from headgate.gateway.answer.response_voice import Native, Translated
from headgate.gateway.intake.abilities import CHAT, RESPONSES, Abilities
from headgate.gateway.intake.asks import bound, made_whole
from headgate.gateway.intake.fields import ResponsesBody
from headgate.model.errors import InvalidRequest, NotOffered
from headgate.policy.answers.output import Allowance
from headgate.wire.body import json
from headgate.wire.body.long_json import LONG_BYTES, lightened
from headgate.wire.exchange import Exchange

STATEFUL: Final = {
    "previous_response_id": "send the earlier turns in `input`",
    "conversation": "send the earlier turns in `input`",
    "background": "ask for a stream, or wait for the answer",
    "prompt": "send the text itself: no prompts are kept here",
}
"""Fields that would need stored state, and what to do instead."""
SAME: Final = (
    "model", "temperature", "top_p", "user", "service_tier", "seed", "stop", "top_k", "min_p", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "priority", "lane", "ttft_target_ms", "tpot_target_ms",
    "longest_neighbour",
)  # fmt: skip
"""Fields that a chat has under the same name."""
WITHOUT_EFFECT: Final = (
    "store", "metadata", "parallel_tool_calls", "max_tool_calls", "prompt_cache_key", "prompt_cache_retention",
    "safety_identifier", "stream_options",
)  # fmt: skip
"""Fields that make no difference to the text answer of one chat, and are left out."""
ROLES: Final = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
TEXT_PARTS: Final = ("input_text", "output_text", "text")


class Untold(Exception):
    """A chat cannot express this field: `args` are the field and the reason."""


def respond(
    exchange: Exchange, given: object, abilities: Abilities, reached: Callable[[str], tuple[str, ...]], most: int
) -> tuple[str, dict[str, Any]]:
    """Path and body to send for a /v1/responses request: /v1/responses, if all replicas of its models have it;
    otherwise a chat, if a chat can express the request; if not, /v1/responses at the replicas that have it. `reached`:
    the models that a name may go to. `most`: maximum items of the input."""
    if isinstance(given, dict):
        made_whole(given)
    body = read(given)
    if isinstance(body["input"], list):
        bound("input", len(body["input"]), most)
    names = reached(body.get("model", ""))
    if not abilities.all_respond(names):
        try:
            chat = as_chat(body)
        except Untold as untold:
            _must_respond(abilities, names, *untold.args)
        else:
            # The input is in the chat.
            echoed = {name: value for name, value in body.items() if name != "input"}
            if len(exchange.body) > LONG_BYTES:
                echoed = lightened(echoed)
            exchange.voice = Translated(echoed, exchange.request_id)
            return CHAT, chat
    exchange.voice = Native()
    return RESPONSES, body


def _must_respond(abilities: Abilities, names: tuple[str, ...], field: str, why: str) -> None:
    """Raises InvalidRequest if one of these models has no replica with /v1/responses."""
    try:
        for name in names:
            abilities.unfit(RESPONSES, name)
    except NotOffered as error:
        raise InvalidRequest(f"{field}: {why}, and {error.message}", param=field) from None


def read(body: object) -> dict[str, Any]:
    """The checked body, without null fields and with store: false. Raises InvalidRequest."""
    shape = json.convert(body, ResponsesBody)
    assert isinstance(body, dict)
    for name, instead in STATEFUL.items():
        if body.get(name):
            raise InvalidRequest(f"{name}: this gateway keeps no answers; {instead}", param=name)
    if shape.store:
        raise InvalidRequest("store: this gateway keeps no answers; leave it out, or send false", param="store")
    if not shape.input:
        raise InvalidRequest("input must be text or a list of at least one item", param="input")
    if shape.max_output_tokens is not None and shape.max_output_tokens < 1:
        message = f"max_output_tokens must be at least 1, got {shape.max_output_tokens}"
        raise InvalidRequest(message, param="max_output_tokens")
    return {**{name: value for name, value in body.items() if value is not None}, "store": False}


def cap(allowance: Allowance, body: dict[str, Any]) -> None:
    """Writes the token limit into a body for an engine's own /v1/responses, which has no stop sequences."""
    if allowance.tokens is not None:
        body["max_output_tokens"] = min(allowance.tokens, body.get("max_output_tokens", allowance.tokens))


# -- as a chat ------------------------------------------------------------------------------------------------


def as_chat(body: dict[str, Any]) -> dict[str, Any]:
    """The body of a chat that asks the same. Raises Untold if a chat cannot express it."""
    for name, value in body.items():
        if name in _READ:
            continue
        if name not in SAME and name not in WITHOUT_EFFECT and not _idle(name, value):
            raise Untold(name, "a chat can't say it")
    chat: dict[str, Any] = {name: body[name] for name in SAME if name in body}
    chat["messages"] = _messages(body)
    if "max_output_tokens" in body:
        chat["max_tokens"] = body["max_output_tokens"]
    if body.get("stream"):
        chat["stream"] = True
    wanted = _format(body.get("text"))
    if wanted is not None:
        chat["response_format"] = wanted
    return chat


_READ: Final = frozenset({"input", "instructions", "max_output_tokens", "stream", "text"})


def _idle(name: str, value: Any) -> bool:
    """Whether a field that a chat lacks has a value without effect."""
    known: dict[str, Callable[[Any], bool]] = {
        "tool_choice": lambda choice: choice in ("none", "auto"),
        "truncation": lambda how: how == "disabled",
        "reasoning": lambda how: isinstance(how, dict) and not any(how.values()),
    }
    return name in known and known[name](value) if value else True


def _messages(body: dict[str, Any]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if "instructions" in body:
        if not isinstance(body["instructions"], str):
            raise Untold("instructions", "only text can be told as a chat")
        messages.append({"role": "system", "content": body["instructions"]})
    asked = body["input"]
    if isinstance(asked, str):
        return [*messages, {"role": "user", "content": asked}]
    return messages + [_message(item, f"input[{at}]") for at, item in enumerate(asked)]


def _message(item: Any, path: str) -> dict[str, Any]:
    if isinstance(item, str):
        return {"role": "user", "content": item}
    if item.get("type", "message") != "message":
        raise Untold(f"{path}.type", f"{str(item['type'])[:64]} is more than text")
    role = item.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise InvalidRequest(f"{path}.role must be one of {', '.join(ROLES)}", param=f"{path}.role")
    content = item.get("content")
    if isinstance(content, list):
        content = "".join(_text(part, f"{path}.content[{at}]") for at, part in enumerate(content))
    if not isinstance(content, str):
        raise InvalidRequest(f"{path}.content must be text or a list of parts", param=f"{path}.content")
    return {"role": ROLES[role], "content": content}


def _text(part: Any, path: str) -> str:
    if isinstance(part, dict) and part.get("type") in TEXT_PARTS and isinstance(part.get("text"), str):
        text: str = part["text"]
        return text
    raise Untold(path, "only text can be told as a chat")


def _format(text: Any) -> dict[str, Any] | None:
    """The response_format of a chat for the `text` field; None: plain text. Raises Untold."""
    if text is None:
        return None
    wanted = text.get("format") if isinstance(text, dict) else None
    if not isinstance(text, dict) or text.get("verbosity") or not isinstance(wanted, dict | None):
        raise Untold("text", "a chat can't say it")
    kind = "text" if wanted is None else wanted.get("type")
    if wanted is None or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "json_object"}
    if kind == "json_schema":
        schema = {name: value for name, value in wanted.items() if name != "type"}
        return {"type": "json_schema", "json_schema": schema}
    raise Untold("text.format.type", "there is text, json_object and json_schema")
