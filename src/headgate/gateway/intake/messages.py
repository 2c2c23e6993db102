"""Reads /v1/messages requests, Anthropic's Messages API, and rewrites them as chats, which every engine has.

What a chat can't say is refused by name: an answer that silently ignores half of the request is worse than a 400. The
answer is written back by gateway/answer/message_voice.py.
"""

import json as text_json
from collections.abc import Callable, Mapping
from typing import Any, Final

from headgate.gateway.answer.message_voice import MessageVoice
from headgate.gateway.intake.abilities import CHAT, Abilities
from headgate.gateway.intake.asks import bound
from headgate.gateway.intake.fields import MessagesBody
from headgate.model.errors import InvalidRequest
from headgate.wire.body import json
from headgate.wire.exchange import Exchange

SAME: Final = (
    "model", "max_tokens", "temperature", "top_p", "top_k", "stream", "seed", "min_p", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "priority", "lane", "ttft_target_ms", "tpot_target_ms",
    "longest_neighbour", "cache_salt", "chat_template_kwargs",
)  # fmt: skip
"""Fields that a chat has under the same name."""
WITHOUT_EFFECT: Final = frozenset((
    "service_tier", "cache_control", "context_management", "betas", "anthropic_version", "anthropic_beta",
    "inference_geo", "speed", "diagnostics",
))  # fmt: skip
"""Fields that make no difference to the answer here, and are left out. Thinking of earlier turns, which
`context_management` may clear, is not passed on anyway."""
_READ: Final = frozenset(
    ("messages", "system", "stop_sequences", "tools", "tool_choice", "metadata", "thinking", "output_config")
)
ROLES: Final = ("user", "assistant", "system")
BILLING: Final = "x-anthropic-billing-header"
"""How a coding agent begins a block of its system prompt that differs in each request. It is left out: the cached
beginning of the prompt would end there."""
NO_THREADS: Final = "thread_unsupported_request"
"""The code by which Anthropic's clients learn that they have to send whole conversations; their tool runner does so
then."""
CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}


def converse(
    exchange: Exchange, given: object, abilities: Abilities, reached: Callable[[str], tuple[str, ...]], most: int
) -> tuple[str, dict[str, Any]]:
    """Path and body to send for a /v1/messages request. `reached`: the models that a name may go to. `most`: maximum
    messages."""
    body = read(given)
    bound("messages", len(body["messages"]), most)
    chat = as_chat(body)
    if chat["messages"][-1]["role"] == "assistant":
        _go_on(chat, abilities, reached(body.get("model", "")))
    exchange.voice = MessageVoice(exchange.request_id, _thinks(body.get("thinking")))
    return CHAT, chat


def read(given: object) -> dict[str, Any]:
    """The checked body, without null fields. Raises InvalidRequest."""
    shape = json.convert(given, MessagesBody)
    assert isinstance(given, dict)
    if not shape.messages:
        raise InvalidRequest("messages must be a list of at least one message", param="messages")
    if shape.max_tokens is not None and shape.max_tokens < 1:
        raise InvalidRequest(f"max_tokens must be at least 1, got {shape.max_tokens}", param="max_tokens")
    body = {name: value for name, value in given.items() if value is not None}
    if body.get("thread"):
        error = InvalidRequest("thread: no conversations are kept here; send the earlier turns", param="thread")
        error.code = NO_THREADS
        raise error
    for name, value in body.items():
        if name not in SAME and name not in WITHOUT_EFFECT and name not in _READ and value:
            raise InvalidRequest(f"{name}: a chat can't say it, and all replicas are asked as chats", param=name)
    return body


def _thinks(thinking: Any) -> bool:
    """Whether the client wants to see the model's reasoning."""
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    return kind in ("enabled", "adaptive") and thinking.get("display") != "omitted"


# -- as a chat ------------------------------------------------------------------------------------------------


def as_chat(body: dict[str, Any]) -> dict[str, Any]:
    """The body of a chat that asks the same. Raises InvalidRequest for what a chat can't say."""
    chat: dict[str, Any] = {name: body[name] for name in SAME if name in body}
    messages: list[dict[str, Any]] = []
    if system := _system(body.get("system")):
        messages.append({"role": "system", "content": system})
    for at, message in enumerate(body["messages"]):
        messages += _messages(message, f"messages[{at}]")
    forget(messages)
    chat["messages"] = messages
    if body.get("stop_sequences"):
        chat["stop"] = body["stop_sequences"]
    tools = [_tool(tool, f"tools[{at}]") for at, tool in enumerate(body.get("tools", ()))]
    if tools:
        chat["tools"] = tools
        _choose(chat, body.get("tool_choice"))
    metadata = body.get("metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("user_id"), str):
        chat["user"] = metadata["user_id"]
    if wanted := _format(body.get("output_config")):
        chat["response_format"] = wanted
    return chat


def forget(messages: list[dict[str, Any]]) -> None:
    """Removes the reasoning of earlier turns, which templates drop. That of the turn under way, in which tools are
    still called, stays under both names that engines read."""
    under_way = True
    for message in reversed(messages):
        under_way = under_way and message["role"] not in ("user", "system")
        thought = message.pop("reasoning_content", "")
        if under_way and thought and "tool_calls" in message:
            message["reasoning_content"] = message["reasoning"] = thought


def _go_on(chat: dict[str, Any], abilities: Abilities, names: tuple[str, ...]) -> None:
    """Has the answer continue the last message, which is the assistant's. Raises InvalidRequest where replicas can't,
    or differ in how."""
    how = abilities.continuing(names)
    last = chat["messages"][-1]
    told = last.get("content")
    wrong = last.get("tool_calls") or not isinstance(told, str) or not told
    if wrong or how is None or (how == "trimmed" and told != told.rstrip()):
        why = "it must be text" if wrong else "not all replicas of this model can go on with it"
        raise InvalidRequest(f"messages: the last is the assistant's, and {why}; end with a user's", param="messages")
    if how in ("pieces", "flags", "flag"):
        chat["continue_final_message"] = True
    if how == "flags":
        chat["add_generation_prompt"] = False


def _system(given: Any) -> str:
    if not isinstance(given, list):
        return given or ""
    texts = [_text(block, f"system[{at}]") for at, block in enumerate(given)]
    return "\n".join(text for text in texts if text and not text.startswith(BILLING))


def _text(block: Any, path: str) -> str:
    if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str):
        text: str = block["text"]
        return text
    raise InvalidRequest(f"{path} must be a block of text", param=path)


def _messages(message: dict[str, Any], path: str) -> list[dict[str, Any]]:
    """The messages of a chat for one message: results of tools have messages of their own."""
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise InvalidRequest(f"{path}.role must be one of {', '.join(ROLES)}", param=f"{path}.role")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise InvalidRequest(f"{path}.content must be text or a list of blocks", param=f"{path}.content")
    if role == "assistant":
        return [_said(content, f"{path}.content")]
    if role == "system":
        return [{"role": role, "content": _system(content)}]
    return _asked(content, f"{path}.content")


def _said(blocks: list[dict[str, Any]], path: str) -> dict[str, Any]:
    """The assistant's message."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for at, block in enumerate(blocks):
        kind = block.get("type")
        if kind == "text":
            texts.append(_text(block, f"{path}[{at}]"))
        elif kind == "tool_use":
            calls.append(_call(block, f"{path}[{at}]"))
        elif kind == "thinking" and isinstance(block.get("thinking"), str):
            thoughts.append(block["thinking"])
        elif kind not in ("thinking", "redacted_thinking"):
            raise _unsaid(kind, f"{path}[{at}]")
    said: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if calls:
        said = {"role": "assistant", "content": said["content"] or None, "tool_calls": calls}
    if thoughts:
        said["reasoning_content"] = "".join(thoughts)
    return said


def _call(block: dict[str, Any], path: str) -> dict[str, Any]:
    name, given = block.get("name"), block.get("input", {})
    if not isinstance(name, str) or not isinstance(block.get("id"), str) or not isinstance(given, dict):
        raise InvalidRequest(f"{path}: a tool_use has an id, a name and an input, which is an object", param=path)
    arguments = text_json.dumps(given, ensure_ascii=False, separators=(",", ":"))
    return {"id": block["id"], "type": "function", "function": {"name": name, "arguments": arguments}}


def _asked(blocks: list[dict[str, Any]], path: str) -> list[dict[str, Any]]:
    """The user's messages: results of tools first, as chats want them right behind the calls. Pictures in a result
    follow in the user's own message."""
    results: list[dict[str, Any]] = []
    shown: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for at, block in enumerate(blocks):
        if block.get("type") == "tool_result":
            results.append(_result(block, f"{path}[{at}]", shown))
        else:
            parts.append(_part(block, f"{path}[{at}]"))
    parts = shown + parts
    if not parts:
        return results or [{"role": "user", "content": ""}]
    if all(part["type"] == "text" for part in parts):
        # As text, which every engine takes.
        return [*results, {"role": "user", "content": "\n".join(part["text"] for part in parts)}]
    return [*results, {"role": "user", "content": parts}]


def _result(block: dict[str, Any], path: str, shown: list[dict[str, Any]]) -> dict[str, Any]:
    """The message with a tool's result. Its pictures are added to `shown`."""
    if not isinstance(block.get("tool_use_id"), str):
        raise InvalidRequest(f"{path}.tool_use_id: name the tool_use that this answers", param=f"{path}.tool_use_id")
    content = block.get("content") or ""
    if isinstance(content, list):
        parts = [_part(one, f"{path}.content[{at}]") for at, one in enumerate(content)]
        shown += [part for part in parts if part["type"] != "text"]
        content = "\n".join(part["text"] for part in parts if part["type"] == "text")
    if not isinstance(content, str):
        raise InvalidRequest(f"{path}.content must be text or a list of blocks", param=f"{path}.content")
    if block.get("is_error") and not content.lower().startswith("error"):
        content = f"Error: {content}" if content else "Error"
    return {"role": "tool", "tool_call_id": block["tool_use_id"], "content": content}


def _part(block: Any, path: str) -> dict[str, Any]:
    """A part of a chat's message: text, or a picture."""
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "text":
        return {"type": "text", "text": _text(block, path)}
    source = block.get("source") if kind in ("image", "document") else None
    if isinstance(source, dict):
        form = source.get("type")
        if kind == "image" and form == "url" and isinstance(source.get("url"), str):
            return {"type": "image_url", "image_url": {"url": source["url"]}}
        if kind == "image" and form == "base64" and isinstance(source.get("data"), str):
            url = f"data:{source.get('media_type') or 'image/png'};base64,{source['data']}"
            return {"type": "image_url", "image_url": {"url": url}}
        if kind == "document" and form == "text" and isinstance(source.get("data"), str):
            title = block.get("title")
            return {"type": "text", "text": f"{title}\n{source['data']}" if isinstance(title, str) else source["data"]}
    raise _unsaid(kind, path)


def _unsaid(kind: object, path: str) -> InvalidRequest:
    what = str(kind)[:64]
    return InvalidRequest(
        f"{path}: a chat can't say {what!r}; there is text, image (base64 or url), a document of text, tool_use and "
        "tool_result",
        param=path,
    )


# -- tools ------------------------------------------------------------------------------------------------------


def _tool(tool: Any, path: str) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise InvalidRequest(f"{path} must be an object", param=path)
    if tool.get("type", "custom") != "custom":
        raise InvalidRequest(
            f"{path}: {str(tool['type'])[:64]} is run by Anthropic's own servers or models; "
            "there are only tools with an input_schema, which the client runs",
            param=path,
        )
    name, schema = tool.get("name"), tool.get("input_schema")
    if not isinstance(name, str) or not isinstance(schema, dict):
        raise InvalidRequest(f"{path}: a tool has a name and an input_schema", param=path)
    function: dict[str, Any] = {"name": name, "parameters": schema}
    if isinstance(tool.get("description"), str):
        function["description"] = tool["description"]
    if isinstance(tool.get("strict"), bool):
        function["strict"] = tool["strict"]
    return {"type": "function", "function": function}


def _choose(chat: dict[str, Any], choice: Any) -> None:
    """Writes which tool is to be called."""
    if choice is None:
        return
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "tool" and isinstance(choice.get("name"), str):
        chat["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    elif isinstance(kind, str) and kind in CHOICES:
        chat["tool_choice"] = CHOICES[kind]
    else:
        wanted = "tool_choice.type must be auto, any, none, or tool with a name"
        raise InvalidRequest(wanted, param="tool_choice")
    if choice.get("disable_parallel_tool_use"):
        chat["parallel_tool_calls"] = False


def _format(config: Any) -> dict[str, Any] | None:
    """The response_format of a chat for `output_config`, whose effort changes nothing here; None: plain text."""
    wanted = config.get("format") if isinstance(config, Mapping) else None
    if wanted is None:
        return None
    if isinstance(wanted, dict) and wanted.get("type") == "json_schema" and isinstance(wanted.get("schema"), dict):
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": wanted["schema"], "strict": True}}
    raise InvalidRequest("output_config.format must be a json_schema with a schema", param="output_config.format")
