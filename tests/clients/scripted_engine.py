"""An engine without a model that does what a capable one would: calls tools, fills schemas in, thinks, answers.

    python -m tests.clients.scripted_engine PORT

What it says follows from the request alone. A last message with a tool's result is answered with that result. A message
that speaks of a tool by name, or a demanded call, gets a call whose arguments fit its schema, streamed in small pieces.
A response_format gets an object of its schema. `think` in the message: it reasons first. All else: `You said: …`.
"""

import asyncio
import re
import sys
from typing import Any

import msgspec
import uvloop

from headgate.model.clock import monotonic
from headgate.wire.exchange import Exchange
from headgate.wire.router import Router
from headgate.wire.server import HttpServer

PIECE = 3
"""Characters of an event's text."""
PROMPT_TOKENS, CACHED_TOKENS = 20, 8


class ScriptedEngine:
    def router(self) -> Router:
        return Router(
            {
                ("POST", "/v1/chat/completions"): self.chat,
                ("POST", "/v1/completions"): self.complete,
                ("POST", "/v1/embeddings"): self.embed,
                ("GET", "/health"): lambda exchange: exchange.respond(200, b"{}"),
                ("GET", "/v1/models"): self.models,
            }
        )

    def models(self, exchange: Exchange) -> None:
        card = {"id": "scripted", "object": "model", "owned_by": "tests", "created": 1700000000, "max_model_len": 4096}
        exchange.respond(200, msgspec.json.encode({"object": "list", "data": [card]}))

    def embed(self, exchange: Exchange) -> None:
        given = msgspec.json.decode(exchange.body)["input"]
        count = 1 if isinstance(given, str) else len(given)
        data = [{"object": "embedding", "index": at, "embedding": [0.5, -0.25, 1.0]} for at in range(count)]
        usage = {"prompt_tokens": 3 * count, "total_tokens": 3 * count}
        exchange.respond(
            200, msgspec.json.encode({"object": "list", "model": "scripted", "data": data, "usage": usage})
        )

    def complete(self, exchange: Exchange) -> None:
        body = msgspec.json.decode(exchange.body)
        choice = {"index": 0, "text": " and so on.", "finish_reason": "stop", "logprobs": None}
        if not body.get("stream"):
            answer = {"object": "text_completion", **head("cmpl-1"), "choices": [choice], "usage": usage(3)}
            exchange.respond(200, msgspec.json.encode(answer))
            return
        exchange.stream()
        for text in pieces(" and so on."):
            tell(exchange, "text_completion", {**choice, "text": text, "finish_reason": None})
        tell(exchange, "text_completion", {**choice, "text": ""})
        exchange.event(
            msgspec.json.encode({"object": "text_completion", **head("x"), "choices": [], "usage": usage(3)})
        )
        exchange.end(b"[DONE]")

    def chat(self, exchange: Exchange) -> None:
        body = msgspec.json.decode(exchange.body)
        thought, text, calls = said(body)
        if body.get("stream"):
            stream(exchange, thought, text, calls)
            return
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if thought:
            message["reasoning_content"] = thought
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
        answer = {"object": "chat.completion", **head("chatcmpl-1"), "choices": [choice], "usage": usage(len(text))}
        exchange.respond(200, msgspec.json.encode(answer))


def stream(exchange: Exchange, thought: str, text: str, calls: list[dict[str, Any]]) -> None:
    def say(finish: str | None = None, **delta: Any) -> None:
        tell(exchange, "chat.completion.chunk", {"index": 0, "delta": delta, "finish_reason": finish})

    exchange.stream()
    say(role="assistant", content="")
    for piece in pieces(thought):
        say(reasoning_content=piece)
    for piece in pieces(text):
        say(content=piece)
    for at, call in enumerate(calls):
        function = call["function"]
        say(tool_calls=[{**call, "index": at, "function": {"name": function["name"], "arguments": ""}}])
        for piece in pieces(function["arguments"]):
            say(tool_calls=[{"index": at, "function": {"arguments": piece}}])
    say("tool_calls" if calls else "stop")
    counts = usage(len(text) // PIECE)
    exchange.event(
        msgspec.json.encode({"object": "chat.completion.chunk", **head("chatcmpl-1"), "choices": [], "usage": counts})
    )
    exchange.end(b"[DONE]")


def tell(exchange: Exchange, kind: str, choice: dict[str, Any]) -> None:
    exchange.event(msgspec.json.encode({"object": kind, **head("chatcmpl-1"), "choices": [choice]}))


def head(name: str) -> dict[str, Any]:
    return {"id": name, "created": 1700000000, "model": "scripted"}


def usage(tokens: int) -> dict[str, Any]:
    details = {"prompt_tokens_details": {"cached_tokens": CACHED_TOKENS}}
    total = PROMPT_TOKENS + tokens
    return {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": tokens, "total_tokens": total, **details}


def pieces(text: str) -> list[str]:
    return [text[at : at + PIECE] for at in range(0, len(text), PIECE)]


def said(body: dict[str, Any]) -> tuple[str, str, list[dict[str, Any]]]:
    """Reasoning, text and calls of the answer."""
    last = body["messages"][-1]
    content = plain(last.get("content"))
    if last["role"] == "tool":
        return "", f"The answer is {content}", []
    thought = "Let me think." if "think" in content else ""
    tools = [tool["function"] for tool in body.get("tools") or ()]
    choice = body.get("tool_choice") or "auto"
    if isinstance(choice, dict):
        wanted = [tool for tool in tools if tool["name"] == choice["function"]["name"]]
    elif choice == "none":
        wanted = []
    else:
        wanted = [tool for tool in tools if re.search(rf"\b{re.escape(tool['name'])}\b", content)]
        wanted = wanted or (tools[:1] if choice == "required" else [])
    if wanted:
        text = "" if choice != "auto" else "I will look. "
        return thought, text, [call(tool, at) for at, tool in enumerate(wanted)]
    form = body.get("response_format") or {}
    if form.get("type") == "json_schema":
        return thought, msgspec.json.encode(instance(form["json_schema"]["schema"], form["json_schema"])).decode(), []
    if form.get("type") == "json_object":
        return thought, '{"a": 1}', []
    return thought, f"You said: {content}", []


def call(tool: dict[str, Any], at: int) -> dict[str, Any]:
    schema = tool.get("parameters") or {}
    arguments = msgspec.json.encode(instance(schema, schema)).decode()
    return {"id": f"call_{at}", "type": "function", "function": {"name": tool["name"], "arguments": arguments}}


def instance(schema: dict[str, Any], root: dict[str, Any]) -> Any:
    """A value that fits a simple schema."""
    if "$ref" in schema:
        found: Any = root.get("schema", root)
        for step in schema["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        return instance(found, root)
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    for name in ("anyOf", "oneOf", "allOf"):
        if name in schema:
            return instance(schema[name][0], root)
    kind = schema.get("type")
    if kind == "object":
        return {name: instance(one, root) for name, one in schema.get("properties", {}).items()}
    if kind == "array":
        return [instance(schema.get("items", {"type": "string"}), root)]
    return {"integer": 7, "number": 7.5, "boolean": True, "null": None}.get(str(kind), "Paris")


def plain(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text") or f"[{part.get('type')}]" for part in content)
    return content or ""


async def main(port: int) -> None:
    http = HttpServer(ScriptedEngine().router(), clock=monotonic)
    print(await http.listen("127.0.0.1", port), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
