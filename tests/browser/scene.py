"""A gateway's outside for the page to look at: the real server, page and feed, and figures that were made up.

    python -m tests.browser.scene PORT [--replicas N] [--key KEY] [--empty] [--keyed]

Prints the port it listens on. Several lanes, one of which has begun to break its promise; everything is drawn from
seeded chance, so that it looks much the same each time, and moves with the clock. POST /worsen adds an alert.
"""

import argparse
import asyncio
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import asdict
from math import log
from random import Random
from typing import Any

import msgspec
import uvloop

from headgate.explain.diagnose import Finding
from headgate.explain.explanation import Because, Explanation, Part, headline, main_part
from headgate.explain.troubles import troubles
from headgate.model.clock import monotonic, wall
from headgate.model.errors import Unauthorized
from headgate.model.outcome import Outcome
from headgate.model.record import Ahead, Gap, Record
from headgate.surface.live import Live
from headgate.surface.page import Page
from headgate.wire.errors import refusal_body
from headgate.wire.exchange import Exchange, Handler
from headgate.wire.router import Router
from headgate.wire.server import HttpServer

STEP_S = 10
SLICES = 60
BANDS = [0.001 * 10 ** (step / 4) for step in range(23)]
"""Where the heat's bands end: four to a decade."""

# name, requests/s, TTFT median, its spread, output tokens, TPOT median, promises
LANES: tuple[tuple[str, float, float, float, int, float, list[dict[str, Any]]], ...] = (
    ("fast", 41.0, 0.115, 0.55, 60, 0.021, [
        {"figure": "ttft", "percentile": 50, "within_s": 0.5}, {"figure": "ttft", "percentile": 95, "within_s": 0.5},
        {"figure": "ttft", "percentile": 99, "within_s": 2.0}, {"figure": "tpot", "percentile": 50, "within_s": 0.08},
        {"figure": "tpot", "percentile": 99, "within_s": 0.2}, {"figure": "e2e", "percentile": 95, "within_s": 5.0},
        {"figure": "e2e", "percentile": 99, "within_s": 30.0},
    ]),
    ("slow", 17.0, 0.42, 0.5, 180, 0.026, [
        {"figure": "ttft", "percentile": 95, "within_s": 2.0}, {"figure": "ttft", "percentile": 99, "within_s": 5.0},
        {"figure": "tpot", "percentile": 50, "within_s": 0.08}, {"figure": "tpot", "percentile": 99, "within_s": 0.2},
        {"figure": "e2e", "percentile": 99, "within_s": 30.0},
    ]),
    ("long", 2.1, 3.4, 0.3, 220, 0.041, [
        {"figure": "ttft", "percentile": 95, "within_s": 10.0}, {"figure": "ttft", "percentile": 99, "within_s": 20.0},
        {"figure": "tpot", "percentile": 50, "within_s": 0.08}, {"figure": "tpot", "percentile": 99, "within_s": 0.4},
    ]),
    ("batch", 6.0, 11.0, 0.6, 400, 0.05, [{"figure": "ttft", "percentile": 99, "within_s": 300.0}]),
)  # fmt: skip

SLOW_ID = "7f3a91c0de-1b42"
HEADLINES: tuple[tuple[str, str, float, float | None, str, str], ...] = (
    ("fast", "acme", 6.91, 4.37, "completed", "3.8 s of 6.9 s in the queue behind 14 requests, 11 of them acme's"),
    ("slow", "globex", 31.4, 2.2, "completed", "26.0 s of 31.4 s stalled: the client was behind with reading"),
    ("fast", "initech", 4.8, 3.9, "completed", "3.7 s of 4.8 s to the first token: r-031 was cold"),
    (
        "long",
        "umbrella",
        42.7,
        19.2,
        "completed",
        "18.6 s of 42.7 s to the first token: its own 48 000 tokens",
    ),
    ("slow", "acme", 12.6, None, "replica_failed", "12.5 s of 12.6 s lost: r-117 broke off, and no retry was left"),
    ("fast", "hooli", 3.2, 0.4, "completed", "2.1 s of 3.2 s in one gap: the prefill of 9d2e-88 (31 000 tokens)"),
    ("batch", "nightly-embeddings-of-everything", 96.0, 61.0, "completed", "60.2 s of 96.0 s in the queue"),
    ("slow", "globex", 9.7, 7.4, "completed", "7.1 s of 9.7 s to the first token: evicted twice"),
)
"""Lane, tenant, end to end, first token, outcome, why."""


class Scene:
    def __init__(self, replicas: int = 6, key: str | None = None, empty: bool = False, keyed: bool = False) -> None:
        self._key = key
        self._keyed = keyed
        self._empty = empty
        self._replicas = replicas
        self._began, self._began_wall = monotonic(), int(wall()) // STEP_S * STEP_S
        self._made: dict[tuple[int, int], dict[str, Any]] = {}
        self._more_trouble = False
        self.live = Live(self.snapshot, self.history, monotonic)

    def router(self) -> Router:
        admin: dict[tuple[str, str], Handler] = {
            ("GET", "/admin/live"): self.live.watch,
            ("GET", "/admin/requests/*"): self._request,
            ("GET", "/admin/blame"): self._blame,
            ("GET", "/admin/history"): self._longer,
        }
        guarded = {route: self._guarded(handler) for route, handler in admin.items()}
        more: dict[tuple[str, str], Handler] = {("POST", "/worsen"): self._worsen, ("GET", "/v1/models"): self._models}
        return Router({**Page().routes(), **guarded, **more})

    def _guarded(self, handler: Handler) -> Handler:
        def ask_first(exchange: Exchange) -> None:
            if self._key is not None and exchange.headers.get("authorization") != f"Bearer {self._key}":
                raise Unauthorized("an admin key is needed: authorization: Bearer KEY")
            handler(exchange)

        return ask_first

    def _models(self, exchange: Exchange) -> None:
        exchange.respond(200, b'{"object":"list","data":[{"id":"llama-3.3-70b"}]}')

    def _worsen(self, exchange: Exchange) -> None:
        self._more_trouble = True
        exchange.respond(200, b"{}")

    def _request(self, exchange: Exchange) -> None:
        wanted = exchange.path.removeprefix("/admin/requests/")
        if wanted.startswith("7f3a91c0de"):
            exchange.respond(200, msgspec.json.encode(explained(wanted)))
        else:
            exchange.respond(404, refusal_body(404, "no record of this request: it is too old, or never came here"))

    def _blame(self, exchange: Exchange) -> None:
        by = "e2e" if "e2e" in exchange.query else "ttft"
        exchange.respond(200, msgspec.json.encode({**BLAME, "by": by}))

    def _longer(self, exchange: Exchange) -> None:
        """The same slices in another order, further apart."""
        step_s, slices = (60, 60) if "1h" in exchange.query else (900, 96)
        newest = int(wall()) // step_s * step_s
        lanes = self.history(0.0)["lanes"]
        told = {
            name: [
                {**parts[-1 - n * 7 % len(parts)], "at": newest - step_s * (slices - 1 - n)}
                for n in range(slices if parts else 0)
            ]
            for name, parts in lanes.items()
        }
        exchange.respond(200, msgspec.json.encode({"lanes": told, "bands": BANDS, "step_s": step_s, "slices": slices}))

    # -- history -------------------------------------------------------------------------------------------

    def history(self, _: float) -> dict[str, Any]:
        newest = int(wall()) // STEP_S * STEP_S
        begins = [] if self._empty else range(newest - STEP_S * (SLICES - 1), newest + 1, STEP_S)
        lanes = {name: [self._slice(index, at) for at in begins] for index, (name, *_) in enumerate(LANES)}
        return {"lanes": lanes, "bands": BANDS}

    def _slice(self, lane: int, at: int) -> dict[str, Any]:
        if (lane, at) not in self._made:
            self._made[lane, at] = self._make(lane, at)
        return self._made[lane, at]

    def _make(self, lane: int, at: int) -> dict[str, Any]:
        name, per_s, ttft, spread, tokens, tpot, _ = LANES[lane]
        age = self._began_wall - at
        chance = Random(f"{name} {age // STEP_S}")
        trouble = 1.0 + (3.2 if name == "fast" else 0.3) * min(1.0, max(0.0, (150 - age) / 60))
        n = max(3, round(per_s * STEP_S * chance.uniform(0.85, 1.15) * (0.6 if name == "batch" and age > 300 else 1)))
        firsts = sorted(chance.lognormvariate(log(ttft * (1 + (trouble - 1) * 0.25)), spread) for _ in range(n))
        firsts = [value * (trouble if rank > 0.9 * n else 1) for rank, value in enumerate(firsts)]
        gaps = sorted(chance.lognormvariate(log(tpot), 0.25) * (1 + (trouble - 1) * 0.1) for _ in range(n))
        waits = sorted(max(0.0004, value - ttft) * 0.7 for value in firsts)
        wholes = sorted(first + chance.expovariate(1 / tokens) * chance.choice(gaps) for first in firsts)
        refused = round(n * 0.16 * (trouble - 1) / 3.2) if name in ("fast", "slow") and trouble > 1.5 else 0
        return {
            "at": at, "requests": n, "failed": int(name == "slow" and 130 < age < 160) * 9, "refused": refused,
            "ttft": _three(firsts), "tpot": _three(gaps), "e2e": _three(wholes), "queue": _three(waits),
            "heat": _heat(firsts), "heat_e2e": _heat(wholes),
        }  # fmt: skip

    # -- now -----------------------------------------------------------------------------------------------

    def snapshot(self, now: float) -> dict[str, Any]:
        passed = now - self._began
        chance = Random(int(now))
        lanes = [self._lane(index, chance) for index in range(len(LANES))]
        replicas = [self._replica(number, chance) for number in range(self._replicas)]
        room = sum(r["limit"] for r in replicas if r["usable"]) or 1
        totals = {
            "requests": 0 if self._empty else 184_213 + int(passed * 66),
            "requests_per_s": sum(lane["requests_per_s"] for lane in lanes),
            "tokens_per_s": 0.0 if self._empty else 9_640 + chance.uniform(-300, 300),
            "utilisation": 0.0 if self._empty else sum(r["requests"] for r in replicas) / room,
            "loop_lag_p99_s": 0.0012 + chance.random() * 0.0004,
            "cost_per_million_tokens": None if self._empty else 4.12,
            "currency": "USD",
            "failed_per_s": 0.0,
            "asked": 0 if self._empty else 3900,
            "availability": None if self._empty else 0.9938,
            "ended_early": {} if self._empty else {"repetition": {"answers": 3, "saved_tokens": 1234}},
            "refused_per_s": sum(lane["refused_per_s"] for lane in lanes),
        }
        alerts = [] if self._empty else _alerts(passed, self._more_trouble)
        findings = [] if self._empty else FINDINGS
        return {
            "verdict": IDLE if self._empty else BROKEN,
            "troubles": msgspec.to_builtins(troubles(alerts, findings)),
            "now": wall(), "version": "0.1.0", "uptime_s": 8_040 + passed, "keyed": self._keyed,
            "lanes": lanes, "replicas": replicas,
            "alerts": alerts,
            "findings": [asdict(finding) for finding in findings],
            "slowest": [] if self._empty else _slowest(passed), "totals": totals,
        }  # fmt: skip

    def _lane(self, index: int, chance: Random) -> dict[str, Any]:
        name, per_s, *_, promises = LANES[index]
        nothing = dict.fromkeys(("p50", "p90", "p95", "p99", "p999"))
        if self._empty:
            return {
                "name": name, "waiting": 0, "running": 0, "requests_per_s": 0.0, "refused_per_s": 0.0,
                "state": "idle", "badge": "idle",
                "failed_per_s": 0.0, "figures": dict.fromkeys(("ttft", "tpot", "e2e", "queue"), nothing),
                "promises": [{**promise, "state": "ok"} for promise in promises],
                "little": {"l": 0.0, "lambda": 0.0, "w": None, "residual": None},
            }  # fmt: skip
        latest = self._slice(index, int(wall()) // STEP_S * STEP_S - STEP_S)
        figures = {}
        for figure in ("ttft", "tpot", "e2e", "queue"):
            p50, p95, p99 = (value * chance.uniform(0.97, 1.03) for value in latest[figure])
            figures[figure] = {"p50": p50, "p90": p95 * 0.9, "p95": p95, "p99": p99, "p999": p99 * 1.6}
        states = []
        for promise in promises:
            ratio = figures[promise["figure"]][f"p{promise['percentile']}"] / promise["within_s"]
            states.append({**promise, "state": "critical" if ratio > 1 else "warning" if ratio > 0.8 else "ok"})
        arriving, took = per_s * chance.uniform(0.95, 1.05), figures["e2e"]["p50"]
        worst = max((one for one in states), key=lambda one: ("ok", "warning", "critical").index(one["state"]))
        where = {"critical": "over", "warning": "near"}.get(worst["state"])
        badge = f"{worst['figure'].upper()} p{worst['percentile']} {where} its promise" if where else "ok"
        waiting = chance.randint(*{"fast": (2, 9), "batch": (40, 60)}.get(name, (0, 3)))
        return {
            "name": name, "waiting": waiting, "running": round(arriving * took), "requests_per_s": arriving,
            "refused_per_s": 0.4 if name == "fast" else 0.0, "failed_per_s": 0.0, "figures": figures,
            "state": worst["state"], "badge": badge, "promises": states,
            "little": {"l": arriving * took, "lambda": arriving, "w": took, "residual": 0.02},
        }  # fmt: skip

    def _replica(self, number: int, chance: Random) -> dict[str, Any]:
        steady = Random(number)
        state, why, usable = "up", "", 1.0
        if number % 67 == 31:
            state, why, usable = "ejected", "3 failures in a row: connection refused", 0.0
        elif number % 53 == 17:
            state, why, usable = "probation", "cooldown over; 1 of 2 probes", 0.0
        elif number % 29 == 4:
            state, why, usable = "ramping", "came back", 0.4
        limit = 64
        share = 0.0 if self._empty else (steady.uniform(0.25, 0.75) + chance.uniform(-0.1, 0.1)) * usable
        requests = int(limit * share)
        return {
            "condition": "up" if usable else "down", "emulated": False,
            "id": f"r-{number:03}", "state": state, "usable": usable, "requests": requests, "limit": float(limit),
            "tokens": int(requests * steady.uniform(300, 1200)),
            "kv_ratio": None if usable == 0 else share * 1.1 + 0.03,
            "batch_size": None if usable == 0 else requests, "version": "2026-11-12" if number % 9 else "2026-11-14",
            "model": "llama-3.3-70b", "gpu_type": "H100" if number % 3 else "L40S",
            "since_s": 42.0 if state != "up" else 60.0 * steady.randint(20, 4000), "why": why,
        }  # fmt: skip


def _three(values: list[float]) -> list[float]:
    return [values[min(len(values) - 1, int(len(values) * q))] for q in (0.5, 0.95, 0.99)]


def _heat(values: list[float]) -> list[int]:
    heat = [0] * (len(BANDS) + 1)
    for value in values:
        heat[bisect_left(BANDS, value)] += 1
    return heat


def _alerts(passed: float, more: bool) -> list[dict[str, Any]]:
    alerts: list[dict[str, Any]] = [
        {
            "name": "ttft_p99", "lane": "fast", "severity": "critical", "since_s": 84 + passed, "missed": False,
            "message": "TTFT p99 is 3.1 s over the last 5 min, 155 % of the promised 2 s (11 840 requests). "
            "Look at the queue wait: if it is most of it, add replicas; if not, long prefills are in the way.",
        },
        {
            "name": "queue_per_replica", "lane": "", "severity": "warning", "since_s": 310 + passed, "missed": False,
            "message": "9.2 requests wait for each usable replica, the target is 8. "
            "Add replicas, or look for ones that are out or slower than the others.",
        },
    ]  # fmt: skip
    budget = "the error budget of 0.1 % is being used 15× as fast as it lasts (212 failed)"
    if more:
        alerts.append(
            {
                "name": "error_budget",
                "lane": "slow",
                "severity": "critical",
                "since_s": 0.0,
                "message": budget,
                "missed": False,
            }
        )
    return alerts


FINDINGS = [
    Finding(
        "critical", "ttft_p99",
        {"ttft_p99_s": 3.12, "promised_s": 2.0, "requests": 11_840, "lost_long_prefill_s": 812.4},
        "first tokens wait for the long prefills of others",
        "a smaller prefill chunk, or replicas of its own for the long lane: replicas[].lanes", "fast",
    ),
    Finding(
        "warning", "replicas", {"replicas_out": 7, "replicas_up": 193},
        "replicas are out: they failed, or do not answer their health checks",
        "start them again, or look at their logs",
    ),
]  # fmt: skip
IDLE = {"level": "idle", "text": "Idle: no requests in 5 min · 6 of 6 replicas"}
BROKEN = {
    "level": "critical",
    "text": "Broken: fast TTFT p99 is 3.1 s, promised 2 s, and 1 more · 6 of 6 replicas · 24 refused in 1 min",
}
BLAME: dict[str, Any] = {
    "last_s": 300.0, "lane": None, "of": 19_400,
    "tenants": [
        {"tenant": "acme", "requests": 9100, "p99_s": 3.12, "explained": 8, "example": SLOW_ID, "own_s": 0.62,
         "others_s": 2.2, "none_s": 0.3},
        {"tenant": "globex", "requests": 7200, "p99_s": 1.9, "explained": 8, "example": SLOW_ID, "own_s": 1.4,
         "others_s": 0.4, "none_s": 0.1},
        {"tenant": "nightly-embeddings-of-everything", "requests": 900, "p99_s": 0.4, "explained": 8,
         "example": SLOW_ID, "own_s": 0.4, "others_s": 0.0, "none_s": 0.0},
    ],
    "costs": [
        {"who": "globex", "whom": "acme", "seconds": 1.9, "share": 0.61},
        {"who": "umbrella", "whom": "acme", "seconds": 0.3, "share": 0.1},
        {"who": "acme", "whom": "globex", "seconds": 0.4, "share": 0.21},
    ],
}  # fmt: skip


def _slowest(passed: float) -> list[dict[str, Any]]:
    return [
        {
            "id": SLOW_ID if index == 0 else f"7f3a91c0de-{index:x}c{index}", "lane": lane, "tenant": tenant,
            "strain": round(8.8 / (index + 1), 2),
            "ttft_s": ttft, "e2e_s": e2e, "outcome": outcome, "headline": headline, "ago_s": 12 + 31 * index + passed,
        }
        for index, (lane, tenant, e2e, ttft, outcome, headline) in enumerate(HEADLINES)
    ]  # fmt: skip


def explained(request_id: str) -> dict[str, Any]:
    """A request that waited for others, was prefilled slowly, and met a gap."""
    record = Record(
        id=request_id, at=81_223.4, wall=wall() - 40, lane="fast", tenant="acme", tier="premium",
        model="llama-3.3-70b", version="2026-11-12", replica="r-014", gpu_type="H100", stream=True,
        outcome=Outcome.COMPLETED, attempts=1, prompt_tokens=412, cached_tokens=128, output_tokens=118,
        accept_s=0.0006, queue_s=3.81, first_s=0.56, stream_s=2.53, end_s=0.0094, ttft_s=4.3706, tpot_s=0.0216,
        e2e_s=6.91, max_gap_s=0.84, gaps=(Gap(5.3906, 0.84),),
        ahead=Ahead(requests=14, tokens=61_200, tenant="acme", tenant_requests=11, tenant_tokens=58_000),
        reason="least loaded of 8 looked at; 128 tokens of its prefix known",
    )  # fmt: skip
    parts = (
        Part("accept", 0.0, 0.0006, "read and understood", Because("ordinary"), 0.0),
        Part("queue", 0.0006, 3.81, "behind 14 requests (61 200 tokens), 11 of them acme's", Because("flood"), 3.81),
        Part("route", 3.8106, 0.0, f"r-014: {record.reason}", Because("ordinary"), 0.0),
        Part("engine_queue", 3.8106, 0.18, "for a place at r-014, which had 46 others", Because("queue"), 0.18),
        Part("prefill", 3.9906, 0.38, "prefill of its own 284 tokens in 1 chunk", Because("own_prompt"), 0.1),
        Part("decode", 4.3706, 1.69, "118 tokens, 14.3 ms each, beside 46 others", Because("generation"), 0.0),
        Part("gap", 5.3906, 0.84, "the prefill of 9d2e-88 (31 000 tokens)", Because("long_prefill", "9d2e-88"), 0.8),
        Part("end", 6.9006, 0.0094, "the client took the rest", Because("ordinary"), 0.0),
    )
    explanation = Explanation(
        record.id, record.lane, record.tenant, record.replica, record.outcome, record.message, record.e2e_s,
        record.ttft_s, parts,
    )  # fmt: skip
    told = msgspec.to_builtins(explanation)
    told |= {"headline": headline(explanation), "main": msgspec.to_builtins(main_part(explanation))}
    return {"record": msgspec.to_builtins(record), "explanation": told, "running": False}


async def serve(scene: Scene, port: int, say: Callable[[int], None]) -> None:
    server = HttpServer(scene.router(), clock=monotonic)
    say(await server.listen("127.0.0.1", port))
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--replicas", type=int, default=6)
    parser.add_argument("--key")
    parser.add_argument("--empty", action="store_true")
    parser.add_argument("--keyed", action="store_true")
    given = parser.parse_args()

    async def run() -> None:
        scene = Scene(given.replicas, given.key, given.empty, given.keyed)
        await serve(scene, given.port, lambda port: print(port, flush=True))

    uvloop.run(run())


if __name__ == "__main__":
    main()
