"""A gateway process with a folder for batches, an engine's double behind it, and the official client in front."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openai import OpenAI
from openai.types import Batch

from tests.engine.process import headgate
from tests.gateway.test_gateway import double

CHAT = "/v1/chat/completions"


def line(number: int, model: str = "double", url: str = CHAT, **body: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": f"Say {number}"}]
    return {"custom_id": f"line-{number}", "method": "POST", "url": url,
            "body": {"model": model, "messages": said, "max_tokens": 4, **body}}  # fmt: skip


def jsonl(lines: list[Any]) -> bytes:
    return b"".join((one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n" for one in lines)


@contextmanager
def site(tmp_path: Path, *engines: str, slots: int = 8, **config: Any) -> Iterator[str]:
    """A gateway process in front of these engines."""
    path = tmp_path / "headgate.yaml"
    batches = {"folder": str(tmp_path / "batches"), **config.pop("batches", {})}
    replicas = [{"url": url, "slots": slots} for url in engines]
    told = {"replicas": replicas, "listen": {"port": 0}, "batches": batches, **config}
    path.write_text(json.dumps(told))
    with headgate("serve", "--config", str(path)) as (_, where):
        yield where


@contextmanager
def served(tmp_path: Path, **config: Any) -> Iterator[OpenAI]:
    with double() as (_, engine), site(tmp_path, engine, **config) as where:
        yield client(where)


def client(where: str, key: str = "none", **more: Any) -> OpenAI:
    return OpenAI(base_url=f"{where}/v1", api_key=key, timeout=20.0, max_retries=0, **more)


def wait_for(check: Callable[[], bool], patience_s: float = 20.0) -> None:
    until = time.monotonic() + patience_s
    while not check():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.05)


def over(ai: OpenAI, batch_id: str, patience_s: float = 30.0) -> Batch:
    """The batch, once it is over."""
    found: list[Batch] = []

    def ended() -> bool:
        found.append(ai.batches.retrieve(batch_id))
        return found[-1].status in ("completed", "failed", "expired", "cancelled")

    wait_for(ended, patience_s)
    return found[-1]


def begin(ai: OpenAI, lines: list[Any], endpoint: Any = CHAT, **more: Any) -> Batch:
    file = ai.files.create(file=("in.jsonl", jsonl(lines)), purpose="batch")
    return ai.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more)


def results(ai: OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    return [json.loads(one) for one in ai.files.content(file_id).text.splitlines()]
