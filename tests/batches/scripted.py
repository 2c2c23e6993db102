"""An engine that does what each prompt says, and counts what it was asked."""

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ScriptedEngine:
    """Prompts: `fail N` is answered with 500 the first N times, `wrong` with 400, `slow S` after S seconds; all else at
    once."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.running = 0
        self.most_running = 0
        self.lock = threading.Lock()
        self.url = ""

    def answer(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        prompt = str(body["messages"][-1]["content"])
        with self.lock:
            self.asked[prompt] += 1
            times = self.asked[prompt]
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        try:
            if found := re.match(r"fail (\d+)", prompt):
                if times <= int(found[1]):
                    return 500, {"error": {"message": "the engine broke"}}
            elif prompt.startswith("wrong"):
                return 400, {"error": {"message": "not like that", "type": "invalid_request_error"}}
            elif found := re.match(r"slow ([\d.]+)", prompt):
                time.sleep(float(found[1]))
        finally:
            with self.lock:
                self.running -= 1
        choice = {"index": 0, "message": {"role": "assistant", "content": "said"}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        return 200, {"id": "1", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}


@contextmanager
def scripted() -> Iterator[ScriptedEngine]:
    engine = ScriptedEngine()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            models = {"object": "list", "data": [{"id": "double", "object": "model"}]}
            self._send(200 if self.path in ("/health", "/v1/models") else 404, models)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if body.get("stream"):  # a deep check, or an answer that may have to be ended early
                self._stream(*engine.answer(body))
            else:
                self._send(*engine.answer(body))

        def _send(self, status: int, told: dict[str, Any]) -> None:
            data = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _stream(self, status: int, told: dict[str, Any]) -> None:
            if status != 200:
                self._send(status, told)
                return
            delta = {"index": 0, "delta": {"role": "assistant", "content": "said"}, "finish_reason": None}
            head = {"id": "1", "object": "chat.completion.chunk", "model": "m"}
            last = {"index": 0, "delta": {}, "finish_reason": "stop"}
            chunks = [{**head, "choices": [delta]}, {**head, "choices": [last]}]
            chunks.append({**head, "choices": [], "usage": told["usage"]})
            data = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that left is no news."""

    server = Server(("127.0.0.1", 0), Handler)
    engine.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield engine
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
