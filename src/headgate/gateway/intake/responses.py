"""Reads /v1/responses requests that need no stored state, and rewrites them as chats for engines that only have chats.

The gateway stores no answers, so a request that refers to an earlier answer or asks for a later one is refused. An
engine that has /v1/responses gets the request without its null fields, and with store: false unless the client says
true. For all others it becomes a chat that asks the same, functions included, and the answer is translated back
(gateway/answer/response_bridge.py).
"""

from collections.abc import Callable
from typing import Any, Final

from headgate.gateway.answer.response_bridge import Translated
from headgate.gateway.answer.response_voice import Native
from headgate.gateway.intake.abilities import CHAT, RESPONSES, Abilities
from headgate.gateway.intake.asks import bound, made_whole
from headgate.gateway.intake.fields import ResponsesBody
from headgate.gateway.intake.messages import forget
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
    "store", "metadata", "max_tool_calls", "prompt_cache_key", "prompt_cache_retention", "safety_identifier",
    "stream_options", "truncation", "reasoning",
)  # fmt: skip
"""Fields that make no difference to the answer of one chat, and are left out. A prompt that is too long is refused
whatever `truncation` says, and how much a model reasons is its template's affair."""
TOLD: Final = "message.output_text.logprobs"
"""What `include` may ask for and a chat's translation does not have. All else in there is about tools that are refused,
or reasoning in a form that only its own server reads."""
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
            if body["store"]:
                raise Untold("store", "a chat is kept nowhere")
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
    for at, item in enumerate(shape.input if isinstance(shape.input, list) else ()):
        if isinstance(item, dict) and item.get("type") == "item_reference":
            path = f"input[{at}]"
            message = (
                f"{path}: this gateway keeps no answers; send the items themselves, as clients do with store: false"
            )
            raise InvalidRequest(message, param=path)
    if not shape.input:
        raise InvalidRequest("input must be text or a list of at least one item", param="input")
    if shape.max_output_tokens is not None and shape.max_output_tokens < 1:
        message = f"max_output_tokens must be at least 1, got {shape.max_output_tokens}"
        raise InvalidRequest(message, param="max_output_tokens")
    return {"store": False, **{name: value for name, value in body.items() if value is not None}}


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
    if tools := [_function(tool, f"tools[{at}]") for at, tool in enumerate(body.get("tools", ()))]:
        chat["tools"] = tools
        _choose(chat, body.get("tool_choice"))
        if "parallel_tool_calls" in body:
            chat["parallel_tool_calls"] = body["parallel_tool_calls"]
    wanted = _format(body.get("text"))
    if wanted is not None:
        chat["response_format"] = wanted
    return chat


_READ: Final = frozenset(
    ("input", "instructions", "max_output_tokens", "stream", "text", "tools", "tool_choice", "parallel_tool_calls")
)


def _idle(name: str, value: Any) -> bool:
    """Whether a field that a chat lacks has a value without effect."""
    if name == "include":
        return isinstance(value, list) and TOLD not in value
    return not value


def _messages(body: dict[str, Any]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if "instructions" in body:
        if not isinstance(body["instructions"], str):
            raise Untold("instructions", "only text can be told as a chat")
        messages.append({"role": "system", "content": body["instructions"]})
    asked = body["input"]
    if isinstance(asked, str):
        return [*messages, {"role": "user", "content": asked}]
    thought = ""
    for at, item in enumerate(asked):
        path, kind = f"input[{at}]", "message" if isinstance(item, str) else item.get("type") or "message"
        if kind == "reasoning":
            thought += _thought(item)
        elif kind == "function_call":
            _call(messages, item, path, thought)
            thought = ""
        elif kind == "function_call_output":
            messages.append(_output(item, path))
        else:
            messages.append(_message(item, path))
            thought = ""
    forget(messages)
    return messages


def _thought(item: dict[str, Any]) -> str:
    """The text of a reasoning item; empty: it has none that is not encrypted."""
    content = item.get("content")
    parts = content if isinstance(content, list) else ()
    return "".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))


def _call(messages: list[dict[str, Any]], item: dict[str, Any], path: str, thought: str) -> None:
    """Adds a call to the assistant's turn, which begins with it unless it had text or other calls before."""
    name, arguments, call_id = item.get("name"), item.get("arguments"), item.get("call_id")
    if not isinstance(name, str) or not isinstance(arguments, str) or not isinstance(call_id, str):
        raise InvalidRequest(f"{path}: a function_call has a name, arguments and a call_id, all text", param=path)
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    turn = messages[-1]
    if thought:
        turn["reasoning_content"] = thought
    function = {"name": name, "arguments": arguments}
    turn.setdefault("tool_calls", []).append({"id": call_id, "type": "function", "function": function})


def _output(item: dict[str, Any], path: str) -> dict[str, Any]:
    content = item.get("output")
    if isinstance(content, list):
        content = "".join(_text(part, f"{path}.output[{at}]") for at, part in enumerate(content))
    if not isinstance(content, str) or not isinstance(item.get("call_id"), str):
        raise InvalidRequest(f"{path}: a function_call_output has a call_id and an output", param=path)
    return {"role": "tool", "tool_call_id": item["call_id"], "content": content}


def _message(item: Any, path: str) -> dict[str, Any]:
    if isinstance(item, str):
        return {"role": "user", "content": item}
    if item.get("type", "message") != "message":
        raise Untold(f"{path}.type", f"{str(item['type'])[:64]} is more than text and calls of functions")
    role = item.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise InvalidRequest(f"{path}.role must be one of {', '.join(ROLES)}", param=f"{path}.role")
    content = item.get("content")
    if isinstance(content, list):
        parts = [_part(part, f"{path}.content[{at}]") for at, part in enumerate(content)]
        if role == "user" and any(part["type"] != "text" for part in parts):
            return {"role": "user", "content": parts}
        content = "".join(_text(part, f"{path}.content[{at}]") for at, part in enumerate(parts))
    if not isinstance(content, str):
        raise InvalidRequest(f"{path}.content must be text or a list of parts", param=f"{path}.content")
    return {"role": ROLES[role], "content": content}


def _part(part: Any, path: str) -> dict[str, Any]:
    """A part of a chat's message: text, or a picture by its address or data."""
    if isinstance(part, dict) and part.get("type") == "input_image" and isinstance(part.get("image_url"), str):
        detail = {"detail": part["detail"]} if isinstance(part.get("detail"), str) else {}
        return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}
    return {"type": "text", "text": _text(part, path)}


def _text(part: Any, path: str) -> str:
    if isinstance(part, dict) and part.get("type") in TEXT_PARTS and isinstance(part.get("text"), str):
        text: str = part["text"]
        return text
    raise Untold(path, "only text and pictures can be told as a chat")


def _function(tool: Any, path: str) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        kind = str(tool.get("type") if isinstance(tool, dict) else tool)[:64]
        raise Untold("tools", f"of tools, a chat has only functions, not {kind}")
    if not isinstance(tool.get("name"), str):
        raise InvalidRequest(f"{path}: a function has a name", param=path)
    told = {name: tool[name] for name in ("name", "description", "parameters", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": told}


def _choose(chat: dict[str, Any], choice: Any) -> None:
    """Writes which function is to be called."""
    if isinstance(choice, dict) and choice.get("type") == "function" and isinstance(choice.get("name"), str):
        chat["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    elif choice in ("auto", "none", "required"):
        chat["tool_choice"] = choice
    elif choice is not None:
        raise Untold("tool_choice", "a chat can't say it")


def _format(text: Any) -> dict[str, Any] | None:
    """The response_format of a chat for the `text` field; None: plain text. Raises Untold."""
    if text is None:
        return None
    wanted = text.get("format") if isinstance(text, dict) else None
    if not isinstance(text, dict) or not isinstance(wanted, dict | None):
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
