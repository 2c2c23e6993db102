"""An engine that answers as it likes.

    python -m tests.gateway.hostile PORT

`POST /mood` takes a list of moods, one for each request in turn, round and round; a prompt that says `say=MOOD` decides
for itself. A mood is `ok`, `reset` (the connection is lost), `die` (the process is gone), `slow` (half a second),
`error` (a stream that begins with an error), `cut` (a stream that is lost after its first token), or a status with, for
429 and 503, the Retry-After that goes with it: `500`, `429`, `429 5`. `GET /log` tells every request that came: when,
its id, what it was answered, and what it asked. Health checks are always good, and so are warm-ups, unless `full` is
set.
"""

import asyncio
import os
import re
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec
import uvloop

from headgate.model.clock import monotonic
from headgate.wire.exchange import Exchange
from headgate.wire.router import Router
from headgate.wire.server import HttpServer

_encode = msgspec.json.encode
TRACEBACK = 'Traceback (most recent call last):\n\tFile "x.py", line 1\x00\x1b[31m\n' + "CUDA error " * 200


@dataclass
class Hostile:
    moods: list[str] = field(default_factory=lambda: ["ok"])
    log: list[tuple[float, str, str, str]] = field(default_factory=list)
    full: bool = False
    """Warm-ups and deep checks are answered 429 too."""
    asked_for_itself: int = 0
    turn: int = 0

    def router(self) -> Router:
        paths = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
        return Router(
            {
                **{("POST", path): self.take for path in paths},
                ("POST", "/mood"): self.change_mood,
                ("POST", "/full"): self.change_full,
                ("GET", "/health"): lambda exchange: exchange.respond(200, b"{}"),
                ("GET", "/v1/models"): lambda exchange: exchange.respond(
                    200, b'{"object":"list","data":[{"id":"m","object":"model","owned_by":"vllm"}]}'
                ),
                ("GET", "/log"): lambda exchange: exchange.respond(
                    200, _encode({"log": self.log, "own": self.asked_for_itself})
                ),
            }
        )

    def change_mood(self, exchange: Exchange) -> None:
        self.moods, self.turn = msgspec.json.decode(exchange.body), 0
        exchange.respond(200, b"{}")

    def change_full(self, exchange: Exchange) -> None:
        self.full = bool(int(exchange.body))
        exchange.respond(200, b"{}")

    def take(self, exchange: Exchange) -> None:
        body = msgspec.json.decode(exchange.body)
        asked = str(body.get("prompt") or body.get("input") or body.get("messages"))
        # The gateway's deep check has no id of its own kind, and a prompt of one character.
        if "x-headgate-purpose" in exchange.headers or asked == "1":
            self.asked_for_itself += 1
            if self.full:
                self.refuse(exchange, "429", "")
            else:
                self.serve(exchange, {**body, "stream": False})
            return
        told = re.search(r"say=(\w+)", asked)
        mood = told[1] if told else self.moods[self.turn % len(self.moods)]
        self.turn += told is None
        self.log.append((time.time(), exchange.headers.get("x-request-id", ""), mood, asked[:200]))
        kind, _, after = mood.partition(" ")
        if kind == "die":
            os._exit(1)
        elif kind == "reset":
            exchange.abort()
        elif kind == "slow":
            asyncio.get_running_loop().call_later(0.5, self.serve, exchange, body)
        elif kind == "error" and body.get("stream"):
            exchange.stream()
            exchange.event(b'{"error":{"message":"it broke","code":500}}')
            exchange.end(b"[DONE]")
        elif kind == "cut" and body.get("stream"):
            exchange.stream()
            exchange.event(b'{"id":"x","choices":[{"index":0,"delta":{"content":"w "}}]}')
            asyncio.get_running_loop().call_later(0.02, exchange.abort)
        elif kind == "deep":
            exchange.respond(500, b'{"error":' * 5000 + b"1" + b"}" * 5000)
        elif kind == "ok":
            self.serve(exchange, body)
        else:
            self.refuse(exchange, kind if kind.isdigit() else "500", after)

    def refuse(self, exchange: Exchange, status: str, after: str) -> None:
        headers = (("retry-after", after),) if after else ()
        text = TRACEBACK if status == "500" else "no room"
        exchange.respond(int(status), _encode({"error": {"message": text, "code": int(status)}}), headers=headers)

    def serve(self, exchange: Exchange, body: dict[str, Any]) -> None:
        if exchange.done:
            return
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        if exchange.path == "/v1/embeddings":
            exchange.respond(200, _encode({"object": "list", "data": [{"embedding": [0.0], "index": 0}]}))
        elif exchange.path == "/v1/responses":
            text = [{"type": "message", "content": [{"type": "output_text", "text": "w"}]}]
            exchange.respond(200, _encode({"id": "r", "object": "response", "status": "completed", "output": text}))
        elif body.get("stream"):
            exchange.stream()
            for finish in (b"null", b'"stop"'):
                exchange.event(
                    b'{"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"w "},'
                    b'"text":"w ","finish_reason":%b}]}' % finish
                )
            exchange.event(_encode({"id": "x", "choices": [], "usage": usage}))
            exchange.end(b"[DONE]")
        else:
            choice = {"index": 0, "text": "w", "message": {"role": "assistant", "content": "w"}}
            whole = {"id": "x", "object": "chat.completion", "choices": [{**choice, "finish_reason": "stop"}]}
            exchange.respond(200, _encode({**whole, "usage": usage}))


async def main(port: int) -> None:
    server = HttpServer(Hostile().router(), clock=monotonic)
    print(await server.listen("127.0.0.1", port), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
