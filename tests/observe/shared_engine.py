"""An engine's double whose requests get in each other's way, as they do on one GPU without chunked prefill.

    python -m tests.observe.shared_engine PORT COLD_S

One prefill (`work=MS`) at a time, and meanwhile no stream gets a token. Before its first answer is complete it is
cold: each request takes COLD_S longer. `ttft=MS itl=MS n=TOKENS size=BYTES` are each request's own. `GET /seen` says
how many are running, how many of them have spoken, and how many there were.
"""

import asyncio
import re
import sys
from dataclasses import dataclass, field

import msgspec
import uvloop

from headgate.model.clock import monotonic
from headgate.wire.exchange import Exchange
from headgate.wire.router import Router
from headgate.wire.server import HttpServer

TICK_S = 0.002


@dataclass(slots=True, eq=False)
class Job:
    exchange: Exchange
    prompt_tokens: int
    work_s: float
    due: float
    gap_s: float
    tokens: int
    size: int
    stream: bool = True
    said: int = 0


@dataclass
class SharedEngine:
    cold_s: float = 0.0
    jobs: list[Job] = field(default_factory=list)
    seen: int = 0
    warm: bool = False

    def router(self) -> Router:
        models = b'{"object":"list","data":[{"id":"any","object":"model"}]}'
        return Router(
            {
                ("POST", "/v1/chat/completions"): self.take,
                ("GET", "/health"): lambda exchange: exchange.respond(200, b"{}"),
                ("GET", "/v1/models"): lambda exchange: exchange.respond(200, models),
                ("GET", "/seen"): self.tell,
            }
        )

    def tell(self, exchange: Exchange) -> None:
        spoken = sum(job.said > 0 for job in self.jobs)
        exchange.respond(200, msgspec.json.encode({"seen": self.seen, "running": len(self.jobs), "speaking": spoken}))

    def take(self, exchange: Exchange) -> None:
        body = msgspec.json.decode(exchange.body)
        text = str(body["messages"][-1]["content"])
        knobs = {name: float(value) for name, value in re.findall(r"(ttft|itl|n|work|size)=([\d.]+)", text)}
        first_s = knobs.get("ttft", 5.0) / 1e3 + (0.0 if self.warm else self.cold_s)
        job = Job(
            exchange,
            max(1, len(text) // 4),
            knobs.get("work", 0.0) / 1e3,
            monotonic() + first_s,
            knobs.get("itl", 0.0) / 1e3,
            int(knobs.get("n", 3)),
            int(knobs.get("size", 2)),
            bool(body.get("stream")),
        )
        self.seen += 1
        self.jobs.append(job)
        exchange.on_gone = lambda: self.jobs.remove(job)
        if job.stream:
            exchange.stream()

    async def run(self) -> None:
        last = monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            now = monotonic()
            passed, last = now - last, now
            prefilling = next((job for job in self.jobs if job.work_s > 0), None)
            if prefilling is not None:
                prefilling.work_s -= passed
                for job in self.jobs:
                    job.due += passed
                continue
            for job in list(self.jobs):
                self.speak(job, now)

    def speak(self, job: Job, now: float) -> None:
        while job.said < job.tokens and job.due <= now:
            job.said += 1
            job.due += job.gap_s
            if not job.stream:
                continue
            finish = b'"stop"' if job.said == job.tokens else b"null"
            job.exchange.event(
                b'{"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"%b"},'
                b'"finish_reason":%b}]}' % (b"w" * job.size, finish)
            )
        if job.said >= job.tokens and job in self.jobs:
            self.jobs.remove(job)
            self.warm = True
            usage = {"prompt_tokens": job.prompt_tokens, "completion_tokens": job.tokens, "total_tokens": 0}
            if not job.stream:
                message = {"role": "assistant", "content": "w" * job.size * job.tokens}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                answer = {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}
                job.exchange.respond(200, msgspec.json.encode(answer))
                return
            job.exchange.event(msgspec.json.encode({"id": "x", "choices": [], "usage": usage}))
            job.exchange.end(b"[DONE]")


async def main(port: int, cold_s: float) -> None:
    engine = SharedEngine(cold_s)
    server = HttpServer(engine.router(), clock=monotonic)
    print(await server.listen("127.0.0.1", port), flush=True)
    await engine.run()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), float(sys.argv[2])))
