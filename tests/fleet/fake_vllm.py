"""A program that starts, listens, fails and leaves processes behind as vLLM does, and is written out as `vllm`.

The model's name says what it does: `missing`, `unready` and `old` fail as vLLM fails, `slow` listens late, `deaf` does
not heed SIGTERM. Every other one serves. It starts a process of its own, as vLLM starts its EngineCore, which heeds no
signal but the last and is in a session of its own, except with the model `grouped`.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

WORD = "w "
MISSING = """\
(APIServer pid=1) INFO 11-19 20:00:00 [serve.py:1] starting
(EngineCore pid=2) ERROR 11-19 20:00:01 [core.py:9] EngineCore failed to start.
(EngineCore pid=2) ERROR 11-19 20:00:01 [core.py:9] Traceback (most recent call last):
(EngineCore pid=2) ERROR 11-19 20:00:01 [core.py:9]   File "core.py", line 9, in run
(EngineCore pid=2) ERROR 11-19 20:00:01 [core.py:9] OSError: /nope is not a local folder and is not a valid model
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1)   File "launch.py", line 3, in <module>
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
OLD = """\
Traceback (most recent call last):
headgate.vllm.supported.UnsupportedVllm: Headgate's scheduler needs vLLM 0.12 or newer, this is 0.9.1: upgrade it
"""
CHILD = (
    "import os, signal; os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print(1, flush=True); signal.pause()"
)


def install(folder: Path) -> Path:
    """Returns a command called vllm that is this program."""
    path = folder / "vllm"
    root = Path(__file__).resolve().parents[2]
    path.write_text(
        f"#!{sys.executable} -P\nimport sys\nsys.path.insert(0, {str(root)!r})\n"
        "from tests.fleet.fake_vllm import main\nmain(sys.argv[1:])\n"
    )
    path.chmod(0o755)
    return path


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    facts: dict[str, Any]

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._answer({"object": "list", "data": [{"id": self.facts["model"], "object": "model"}]})
        elif self.path == "/facts":
            self._answer(self.facts)
        elif self.path == "/health":
            self._answer({})
        else:
            self._answer({"error": {"message": "there is no such path"}}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/die":
            os._exit(7)
        tokens = body.get("max_tokens") or 4
        usage = {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens}
        chat = self.path == "/v1/chat/completions"
        message = {"role": "assistant", "content": WORD * tokens}
        said: dict[str, Any] = {"message": message} if chat else {"text": WORD * tokens}
        choice = {"index": 0, "finish_reason": "length", **said}
        whole = {"id": "1", "object": "x", "created": 1, "model": self.facts["model"], "choices": [choice]}
        if not body.get("stream"):
            self._answer({**whole, "usage": usage})
            return
        part: dict[str, Any] = {"delta": {"content": WORD}} if chat else {"text": WORD}
        events = [{**whole, "choices": [{"index": 0, "finish_reason": None, **part}]}] * tokens
        ending: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
        events += [{**whole, "choices": [{"index": 0, "finish_reason": "length", **ending}]}]
        events += [{**whole, "choices": [], "usage": usage}]
        data = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        self._send(data.encode(), "text/event-stream", 200)

    def _answer(self, body: dict[str, Any], status: int = 200) -> None:
        self._send(json.dumps(body).encode(), "application/json", status)

    def _send(self, data: bytes, kind: str, status: int) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Server(ThreadingHTTPServer):
    address_family = socket.AF_UNIX
    daemon_threads = True
    path: str

    def server_bind(self) -> None:
        self.socket.bind(self.path)


def main(words: list[str]) -> None:
    command, model, *flags = words
    assert command == "serve"
    if "--bogus" in flags:
        sys.exit("usage: vllm serve [model_tag] [options]\nvllm: error: unrecognized arguments: --bogus")
    if model in ("missing", "old"):
        sys.stderr.write(MISSING if model == "missing" else OLD)
        sys.exit(1)
    setsid = "os.setsid()" if model != "grouped" else ""
    child = subprocess.Popen([sys.executable, "-c", CHILD.replace("os.setsid()", setsid)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    if model == "unready":
        sys.exit("ValueError: No available memory for the cache blocks.")
    if model == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if model == "slow":
        time.sleep(1.0)
    path = flags[flags.index("--uds") + 1]
    Handler.facts = {
        "model": model,
        "pid": os.getpid(),
        "child": child.pid,
        "flags": flags,
        "devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "metrics": os.listdir(os.environ["PROMETHEUS_MULTIPROC_DIR"]),
        "path": os.environ["PYTHONPATH"],
    }
    print("INFO 11-19 20:00:00 [launcher.py:1] serving", flush=True)
    Server.path = path
    Server(("", 0), Handler).serve_forever()
