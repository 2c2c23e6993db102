"""A gateway that runs its own replicas, as a process; and streams sent to it when they are due, whatever it does."""

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
READY_WITHIN_S, ANSWER_WITHIN_S = 90.0, 120.0


# -- the gateway --------------------------------------------------------------------------------------------------


class Gateway:
    def __init__(self, url: str, process: subprocess.Popen[str]) -> None:
        self.url = url
        self.process = process

    def ask(self, path: str, body: object = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return found

    def states(self) -> dict[str, str]:
        return {replica["id"]: replica["state"] for replica in self.ask("/admin/fleet")["replicas"]}

    def until(self, wanted: dict[str, int], within_s: float = READY_WITHIN_S) -> float:
        """Wait for a number of replicas in each of these states. Gives how long that took."""
        began = time.monotonic()
        while True:
            states = list(self.states().values())
            if all(states.count(state) == count for state, count in wanted.items()):
                return time.monotonic() - began
            if time.monotonic() - began > within_s:
                raise SystemExit(f"after {within_s:g} s there are {states}, and {wanted} was waited for")
            time.sleep(0.05)

    def pid(self, replica_id: str) -> int:
        url = next(one["url"] for one in self.ask("/admin/fleet")["replicas"] if one["id"] == replica_id)
        socket = url.removeprefix("unix:").encode()
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if folder.name.isdecimal() and socket in (folder / "cmdline").read_bytes().split(b"\0"):
                    return int(folder.name)
        raise SystemExit(f"no process of {replica_id} was found")


@contextmanager
def gateway(config: dict[str, Any]) -> Iterator[Gateway]:
    """Ready; gone afterwards, however the block is left."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "headgate.yaml"
        path.write_text(json.dumps({"listen": {"port": 0}, **config}))
        process = subprocess.Popen(
            [sys.executable, "-m", "headgate", "serve", "--config", str(path)],
            stderr=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(ROOT / "src"), **os.environ, "NO_COLOR": "1", "COLUMNS": "200"},
        )
        try:
            assert process.stderr is not None
            said = []
            for line in process.stderr:
                said.append(line)
                if found := re.search(r"Ready on (\S+)", line):
                    threading.Thread(target=process.stderr.read, daemon=True).start()
                    yield Gateway(found[1], process)
                    return
            raise SystemExit(f"the gateway did not get ready: {''.join(said)}")
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


# -- the load -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shot:
    due_s: float
    """When it was due, from the beginning."""
    ttft_s: float | None
    """From when it was due; None: no first token, or it was not streamed."""
    tokens: int
    whole: bool
    """It ended as it should."""
    error: str
    stream: bool = True


@dataclass(frozen=True, slots=True)
class Ask:
    prompt_tokens: int
    output_tokens: int


def arrivals(phases: Sequence[tuple[float, float]], seed: int) -> list[float]:
    """When requests are due: (rate, seconds) one after the other, evenly random within each."""
    rng, due, began = random.Random(seed), [], 0.0
    for rate, seconds in phases:
        at = began + rng.expovariate(rate)
        while at < began + seconds:
            due.append(at)
            at += rng.expovariate(rate)
        began += seconds
    return due


async def play(url: str, due: Sequence[float], what: Ask, seed: int) -> list[Shot]:
    """Every prompt begins differently: nothing is in anybody's cache. One answer in three is not streamed."""
    host, _, port = url.removeprefix("http://").partition(":")
    began, rng = time.monotonic(), random.Random(seed)
    tasks = []
    for number, at in enumerate(due):
        await asyncio.sleep(max(0.0, began + at - time.monotonic()))
        prompt = [rng.randrange(10, 30_000) for _ in range(what.prompt_tokens)]
        shoot = _shoot(host, int(port), at, began, prompt, what, stream=number % 3 != 2)
        tasks.append(asyncio.get_running_loop().create_task(shoot))
    return list(await asyncio.gather(*tasks))


async def _shoot(host: str, port: int, at: float, began: float, prompt: list[int], what: Ask, stream: bool) -> Shot:
    body = {"model": "default", "prompt": prompt, "max_tokens": what.output_tokens, "ignore_eos": True}
    data = json.dumps({**body, "stream": stream}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    first, tokens, error, whole = None, 0, "", False
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(f"{head}content-length: {len(data)}\r\nconnection: close\r\n\r\n".encode() + data)
                status = (await reader.readline()).split()[1].decode()
                if status != "200":
                    return Shot(at, None, 0, False, f"status {status}", stream)
                if not stream:
                    answer = json.loads((await reader.read()).partition(b"\r\n\r\n")[2])
                    tokens, whole = answer["usage"]["completion_tokens"], True
                async for line in reader:
                    if line.startswith(b"data: {"):
                        if b'"error"' in line:
                            error = json.loads(line[6:])["error"].get("code") or "error event"
                            break
                        tokens += 1
                        first = time.monotonic() if first is None else first
                    elif line.startswith(b"data: [DONE]"):
                        whole = True
            finally:
                writer.close()
    except (OSError, TimeoutError, IndexError, ValueError, KeyError) as failure:
        error = f"{type(failure).__name__}"
    return Shot(at, None if first is None else first - began - at, tokens, whole, error, stream)


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
