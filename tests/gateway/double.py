"""An engine's double: speaks OpenAI over HTTP, computes nothing, takes its time.

    python -m tests.gateway.double PORT [MODEL]

A request says how it behaves, in its prompt or message: `ttft=MS itl=MS n=TOKENS work=MS cached=TOKENS`. `ttft` passes
for each by itself; `work` is prefill that all requests share, as they would a processor; `cached` are prompt tokens of
its cache. With `tell=vllm` or `tell=llama` an answer in one piece says when its first token was there, as these engines
do; with `tell=lies` it says what can't be. `GET /seen` tells what it has seen: requests, those running, and those whose
client closed the connection before the end, with when, and the targets that came with each request.
"""

import asyncio
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

TICK_S = 0.005


@dataclass(slots=True, eq=False)
class Job:
    exchange: Exchange
    stream: bool
    tokens: int
    gap_s: float
    wait_until: float
    work_s: float
    prompt_tokens: int
    tell: str = ""
    cached: int = 0
    said: int = 0
    came_at: float = 0.0
    first_at: float = 0.0
    due: float = 0.0


@dataclass
class Double:
    jobs: list[Job] = field(default_factory=list)
    seen: int = 0
    warmed: int = 0
    broken: bool = False
    """Warm-ups fail."""
    most: int = 0
    closed_at: list[float] = field(default_factory=list)
    model: str = "double"
    refuse: int = 0
    """Answer this many requests 503."""
    held_s: float = 0.0
    """Comes on top of everybody's first token."""
    word: str = "w "
    """What it says."""
    targets: list[tuple[float | None, float | None]] = field(default_factory=list)
    """The targets that came with each request: for its first token, and for each further one."""
    role: bool = False
    """It says at once that it is the assistant's turn."""

    def router(self) -> Router:
        return Router(
            {
                ("POST", "/v1/chat/completions"): self.take,
                ("POST", "/v1/completions"): self.take,
                ("POST", "/refuse"): self.start_refusing,
                ("POST", "/break"): self.change_broken,
                ("POST", "/hold"): self.hold,
                ("POST", "/word"): self.change_word,
                ("POST", "/role"): self.change_role,
                ("POST", "/drop"): self.drop,
                ("GET", "/health/ready"): lambda exchange: exchange.respond(200, b"{}"),
                ("GET", "/health/deep"): lambda exchange: exchange.respond(200, b"{}"),
                ("GET", "/health"): lambda exchange: exchange.respond(200, b"{}"),
                ("GET", "/v1/models"): self.list_models,
                ("GET", "/seen"): self.tell,
            }
        )

    def list_models(self, exchange: Exchange) -> None:
        models = {"object": "list", "data": [{"id": self.model, "object": "model"}]}
        exchange.respond(200, msgspec.json.encode(models))

    def tell(self, exchange: Exchange) -> None:
        facts = {"seen": self.seen, "running": len(self.jobs), "most": self.most, "closed_at": self.closed_at}
        facts["warmed"] = self.warmed
        facts["targets"] = self.targets
        exchange.respond(200, msgspec.json.encode(facts))

    def start_refusing(self, exchange: Exchange) -> None:
        self.refuse = int(exchange.body)
        exchange.respond(200, b"{}")

    def change_broken(self, exchange: Exchange) -> None:
        self.broken = bool(int(exchange.body))
        exchange.respond(200, b"{}")

    def hold(self, exchange: Exchange) -> None:
        self.held_s = float(exchange.body) / 1e3
        exchange.respond(200, b"{}")

    def change_word(self, exchange: Exchange) -> None:
        self.word = exchange.body.decode()
        exchange.respond(200, b"{}")

    def change_role(self, exchange: Exchange) -> None:
        self.role = bool(int(exchange.body))
        exchange.respond(200, b"{}")

    def drop(self, exchange: Exchange) -> None:
        """As if it died, for those who are here."""
        for job in list(self.jobs):
            job.exchange.abort()
        exchange.respond(200, b"{}")

    def take(self, exchange: Exchange) -> None:
        if "x-headgate-purpose" in exchange.headers:  # the gateway's own: no client's request
            self.warmed += 1
            if self.broken:
                exchange.respond(500, b'{"error":{"message":"no memory","code":500}}')
                return
            exchange.respond(200, b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}')
            return
        if self.refuse > 0:
            self.refuse -= 1
            exchange.respond(503, b'{"error":{"message":"busy","code":503}}')
            return
        body = msgspec.json.decode(exchange.body)
        text = str(body.get("prompt") or body["messages"][-1]["content"])
        knobs = {name: float(value) for name, value in re.findall(r"(ttft|itl|n|work|cached)=([\d.]+)", text)}
        now = monotonic()
        job = Job(
            exchange,
            bool(body.get("stream")),
            int(knobs.get("n", 3)),
            knobs.get("itl", 0.0) / 1e3,
            now + knobs.get("ttft", 0.0) / 1e3 + self.held_s,
            knobs.get("work", 0.0) / 1e3,
            max(1, len(text) // 4),
            "".join(re.findall(r"tell=(\w+)", text)),
            int(knobs.get("cached", 0)),
            came_at=now,
        )
        self.seen += 1
        self.targets.append((body.get("ttft_target_ms"), body.get("tpot_target_ms")))
        self.jobs.append(job)
        self.most = max(self.most, len(self.jobs))

        def gone() -> None:
            self.jobs.remove(job)
            self.closed_at.append(time.monotonic())

        exchange.on_gone = gone
        if job.stream:
            exchange.stream()
            if self.role:
                exchange.event(b'{"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}')

    async def run(self) -> None:
        last = monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            now, passed, last = monotonic(), monotonic() - last, monotonic()
            working = [job for job in self.jobs if job.work_s > 0]
            for job in working:
                job.work_s -= passed / len(working)
            for job in list(self.jobs):
                if job.work_s <= 0 and now >= job.wait_until:
                    self.speak(job, now)

    def speak(self, job: Job, now: float) -> None:
        job.due = job.due or now
        job.first_at = job.first_at or now
        while job.said < job.tokens and job.due <= now:
            job.said += 1
            job.due += job.gap_s
            if job.stream:
                finish = b'"stop"' if job.said == job.tokens else b"null"
                word = self.word.encode()
                job.exchange.event(
                    b'{"id":"x","object":"chat.completion.chunk","model":"%b","choices":[{"index":0,'
                    b'"delta":{"content":"%b"},"text":"%b","finish_reason":%b}]}'
                    % (self.model.encode(), word, word, finish)
                )
        if job.said >= job.tokens and job in self.jobs:
            self.jobs.remove(job)
            counted = {"prompt_tokens": job.prompt_tokens, "completion_tokens": job.tokens, "total_tokens": 0}
            usage = counted | ({"prompt_tokens_details": {"cached_tokens": job.cached}} if job.cached else {})
            if job.stream:
                job.exchange.event(msgspec.json.encode({"id": "x", "model": self.model, "choices": [], "usage": usage}))
                job.exchange.end(b"[DONE]")
            else:
                text = self.word * job.tokens
                choice = {"index": 0, "text": text, "message": {"role": "assistant", "content": text}}
                choice["finish_reason"] = "stop"
                body = {"id": "x", "object": "chat.completion", "model": self.model, "choices": [choice]}
                told = timings(job.tell, 1e3 * (job.first_at - job.came_at), 1e3 * (now - job.first_at))
                job.exchange.respond(200, msgspec.json.encode({**body, **told, "usage": usage}))


def timings(how: str, first_ms: float, rest_ms: float) -> dict[str, Any]:
    """What an engine says of an answer in one piece, in its own words."""
    if how == "vllm":
        waited_ms = first_ms / 2
        return {
            "metrics": {
                "queue_time_ms": waited_ms,
                "time_to_first_token_ms": first_ms - waited_ms,
                "generation_time_ms": rest_ms,
                "mean_itl_ms": None,
            }
        }
    if how == "llama":
        return {"timings": {"prompt_n": 7, "prompt_ms": first_ms, "predicted_n": 3, "predicted_ms": rest_ms}}
    return {"metrics": {"time_to_first_token_ms": 1e12, "generation_time_ms": -3.0}} if how == "lies" else {}


async def main(port: int, model: str = "double") -> None:
    double = Double(model=model)
    server = HttpServer(double.router(), clock=monotonic)
    print(await server.listen("127.0.0.1", port), flush=True)
    await double.run()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), *sys.argv[2:]))
