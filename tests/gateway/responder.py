"""A double of an engine that has /v1/responses and /v1/embeddings itself, as vLLM does.

    python -m tests.gateway.responder PORT [fails]

The input says how it answers: `n=TOKENS`, `break` (after the second), `hold` (no end). One that `fails` announces a
response and never gives one. GET /asked tells what it was asked, in order.
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


class Events:
    """A Voice: the double says its events itself."""

    def event(self, data: bytes) -> bytes:
        return data

    def body(self, body: bytes) -> bytes:
        return body


class Responder:
    def __init__(self, fails: bool) -> None:
        self.fails = fails
        self.asked: list[dict[str, Any]] = []

    def router(self) -> Router:
        return Router(
            {
                ("POST", "/v1/responses"): self.respond,
                ("POST", "/v1/embeddings"): self.embed,
                ("POST", "/v1/chat/completions"): self.chat,
                ("POST", "/v1/completions"): self.chat,
                ("GET", "/health"): lambda exchange: exchange.respond(200, b"{}"),
                ("GET", "/v1/models"): self.models,
                ("GET", "/asked"): lambda exchange: exchange.respond(200, msgspec.json.encode(self.asked)),
            }
        )

    def models(self, exchange: Exchange) -> None:
        card = {"id": "m", "object": "model", "owned_by": "vllm"}
        exchange.respond(200, msgspec.json.encode({"object": "list", "data": [card]}))

    def chat(self, exchange: Exchange) -> None:
        if "x-headgate-purpose" not in exchange.headers:
            self.asked.append({"path": exchange.path, **msgspec.json.decode(exchange.body)})
        choice = {"index": 0, "message": {"role": "assistant", "content": "c"}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1}
        exchange.respond(200, msgspec.json.encode({"id": "x", "created": 5, "choices": [choice], "usage": usage}))

    def embed(self, exchange: Exchange) -> None:
        body = msgspec.json.decode(exchange.body)
        self.asked.append({"path": exchange.path, **body})
        count = 1 if isinstance(body["input"], str) else len(body["input"])
        data = [{"object": "embedding", "index": at, "embedding": [0.5, -0.25]} for at in range(count)]
        usage = {"prompt_tokens": 3 * count, "total_tokens": 3 * count}
        exchange.respond(
            200, msgspec.json.encode({"object": "list", "data": data, "model": body["model"], "usage": usage})
        )

    def respond(self, exchange: Exchange) -> None:
        body = msgspec.json.decode(exchange.body)
        self.asked.append({"path": exchange.path, **body})
        asked = str(body["input"])
        found = re.search(r"n=(\d+)", asked)
        tokens = int(found[1]) if found else 3
        words = [f"w{at} " for at in range(tokens)]
        if not body.get("stream"):
            exchange.respond(200, msgspec.json.encode(response("completed", "".join(words), tokens)))
            return
        exchange.voice = Events()
        exchange.stream()
        tell(exchange, "response.created", response=response("in_progress", "", None))
        tell(exchange, "response.in_progress", response=response("in_progress", "", None))
        if self.fails:
            exchange.end()
            return
        where = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        tell(exchange, "response.output_item.added", output_index=0, item=message("", "in_progress"))
        tell(exchange, "response.content_part.added", **where, part=part(""))
        for number, word in enumerate(words):
            tell(exchange, "response.output_text.delta", **where, delta=word, logprobs=[])
            if number == 1 and "break" in asked:
                exchange.end()
                return
        if "hold" in asked:
            return
        text = "".join(words)
        tell(exchange, "response.output_text.done", **where, text=text, logprobs=[])
        tell(exchange, "response.content_part.done", **where, part=part(text))
        tell(exchange, "response.output_item.done", output_index=0, item=message(text, "completed"))
        tell(exchange, "response.completed", response=response("completed", text, tokens))
        exchange.end()


def tell(exchange: Exchange, name: str, **fields: Any) -> None:
    # The type comes last, as pydantic writes it for some events.
    data = msgspec.json.encode({**fields, "sequence_number": 0, "type": name})
    exchange.event(b"event: %b\ndata: %b\n\n" % (name.encode(), data))


def part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


def message(text: str, status: str) -> dict[str, Any]:
    content = [part(text)] if text else []
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": status, "content": content}


def response(status: str, text: str, tokens: int | None) -> dict[str, Any]:
    usage = None
    if tokens is not None:
        counts = {"input_tokens": 11, "output_tokens": tokens, "total_tokens": 11 + tokens}
        usage = {**counts, "input_tokens_details": {"cached_tokens": 4}, "output_tokens_details": {}}
    return {
        "id": "resp_own",
        "object": "response",
        "created_at": 7,
        "status": status,
        "model": "m",
        "output": [message(text, "completed")] if text else [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage,
    }


async def main(port: int, fails: bool) -> None:
    http = HttpServer(Responder(fails).router(), clock=monotonic)
    print(await http.listen("127.0.0.1", port), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), "fails" in sys.argv))
