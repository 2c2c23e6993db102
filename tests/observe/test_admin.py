"""The gateway's inside over HTTP: who may look, what is found, and that no stream waits for it."""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headgate.cli.client import ended_line
from headgate.config.gateway import GatewayConfig, ObserveConfig
from headgate.explain.neighbours import Neighbour
from headgate.gateway.gateway import Gateway
from headgate.measure.evidence import WORST, Evidence, strain_of
from headgate.measure.figures import Figures
from headgate.measure.pulse import Pause, Pulse
from headgate.model.clock import monotonic
from headgate.model.errors import Unauthorized
from headgate.model.event import Probed, ReplicaJoined
from headgate.model.lane import LANES
from headgate.model.outcome import Outcome
from headgate.model.record import Ahead, EngineTimings, Gap, Record
from headgate.model.replica import Replica
from headgate.replica.http import Connections
from headgate.surface.access import AdminAccess
from headgate.surface.admin import JOBS, Admin
from headgate.surface.ledger import Holdings
from headgate.surface.snapshot import Sources
from headgate.wire.exchange import Exchange
from headgate.wire.router import Router
from headgate.wiring.gateway import build_gateway
from tests.ledger import settled
from tests.policy.records import record
from tests.replica.engine import STREAM, Engine, engine, token
from tests.wire.serving import Answer, Client, Served, live, post, serving, until

KEY = "open sesame"
DIGEST = hashlib.sha256(KEY.encode()).hexdigest()
AHEAD = Ahead(45, 9000, "acme", 40, 8000)


class Alarms:
    def state(self, now: float | None = None, /) -> dict[str, Any]:
        promise = {"lane": "fast", "figure": "ttft", "percentile": 99, "within_s": 2.0, "state": "critical"}
        alert = {"name": "queue_per_replica", "lane": "", "severity": "warning", "message": "9 wait", "since_s": 4.0,
                 "missed": False}  # fmt: skip
        told = {"level": "critical", "text": "Broken: fast TTFT p99 is 3 s, promised 2 s"}
        return {"verdict": told, "worst": "critical", "promises": [promise], "alerts": [alert]}


class Scene:
    def __init__(self, access: AdminAccess, keep: int) -> None:
        config = GatewayConfig(observe=ObserveConfig(keep=keep, price_per_replica_hour=3.6))
        self.gateway: Gateway = build_gateway(config, monotonic, 1)
        self.figures = Figures(self.gateway.dispatcher.lanes, config.observe, monotonic() - 30)
        self.pulse = Pulse(monotonic)
        self.refreshed = 0
        sources = Sources(
            self.gateway, self.figures, Alarms(), self.pulse, config.observe, clock=monotonic, refresh=self.refresh
        )
        self.admin = Admin(sources, access)
        self.ledger = Holdings(self.gateway, access)
        self.router = Router({("POST", "/v1/chat/completions"): self.gateway.complete, **self.admin.routes()})
        self.served: Served | None = None

    def refresh(self) -> None:
        """What the integrator's timer does a few times a second."""
        self.refreshed += 1
        records, now = self.gateway.account.fresh(), monotonic()
        self.figures.take(records, now)
        self.admin.take(records, now)

    def close(self, **given: Any) -> Record:
        """A request that has just ended."""
        closed = record(**given)
        closed = record(**{"at": monotonic() - closed.e2e_s, **given})
        self.gateway.account.open()
        self.gateway.account.close(closed)
        return closed

    async def get(self, path: str, *headers: str, host: str = "127.0.0.1:8000") -> Answer:
        assert self.served is not None
        client = await self.served.connect()
        lines = "".join(f"{line}\r\n" for line in (f"GET {path} HTTP/1.1", f"host: {host}", *headers))
        return await client.ask(lines.encode() + b"\r\n")

    async def json(self, path: str) -> dict[str, Any]:
        answer = await self.get(path)
        assert answer.status == 200, answer.body
        return dict(json.loads(answer.body))

    async def ask(self, body: bytes) -> Client:
        assert self.served is not None
        client = await self.served.connect()
        client.send(post(body, b"x-request-id: mine").replace(b"POST / ", b"POST /v1/chat/completions "))
        return client

    def join(self, replica: Engine) -> Connections:
        made = Replica(id="a", url=replica.url, slots=4, tags={"version": "2", "gpu_type": "H100"})
        pool = Connections(replica.url, clock=monotonic)
        self.gateway.placing.join(made, pool)
        self.gateway.hear(ReplicaJoined(made))
        self.gateway.hear(Probed("a", ok=True))
        return pool


OPEN = AdminAccess((), loopback_only=True)


@contextlib.asynccontextmanager
async def scene(access: AdminAccess = OPEN, keep: int = 1000) -> AsyncIterator[Scene]:
    it = Scene(access, keep)
    async with serving(it.router) as served:
        it.served = served
        it.ledger.server = served.server
        try:
            yield it
            for client in served.opened:
                client.leave()
            await settled(it.ledger)
        finally:
            it.admin.close()
            await it.gateway.finish(0)


# -- who may look --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "loopback", "headers", "allowed"),
    [
        ((), True, {"host": "127.0.0.1:8000"}, True),
        ((), True, {"host": "localhost:8000"}, True),
        ((), True, {"host": "LOCALHOST"}, True),
        ((), True, {"host": "[::1]:8000"}, True),
        ((), True, {"host": "[::1]"}, True),
        ((), True, {"host": "evil.example:8000"}, False),  # its name was pointed here
        ((), True, {"host": "127.0.0.1.evil.example"}, False),
        ((), True, {"host": "[::1"}, False),
        ((), True, {}, False),
        ((), True, {"host": "localhost", "x-forwarded-for": "9.9.9.9"}, False),  # a proxy beside us
        ((), False, {"host": "127.0.0.1:8000"}, False),
        ((), False, {"host": "127.0.0.1:8000", "authorization": f"Bearer {KEY}"}, False),
        ((DIGEST,), True, {"host": "127.0.0.1:8000"}, False),
        ((DIGEST,), False, {"authorization": f"Bearer {KEY}"}, True),
        ((DIGEST,), False, {"authorization": f"bearer  {KEY} "}, True),
        ((DIGEST,), False, {"x-api-key": KEY}, True),
        ((DIGEST,), False, {"x-api-key": DIGEST}, False),
        ((DIGEST,), False, {"authorization": "Bearer wrong"}, False),
        ((DIGEST,), False, {"authorization": f"Basic {KEY}"}, False),
        ((DIGEST,), False, {"authorization": "Bearer \udcff"}, False),
    ],
)
def test_an_admin_key_is_needed_unless_nobody_else_can_come(
    keys: tuple[str, ...], loopback: bool, headers: dict[str, str], allowed: bool
) -> None:
    access = AdminAccess(keys, loopback_only=loopback)
    with contextlib.nullcontext() if allowed else pytest.raises(Unauthorized):
        access.check(headers)


def test_keys_can_be_replaced_while_it_runs() -> None:
    access = AdminAccess((DIGEST,), loopback_only=True)
    access.change((hashlib.sha256(b"new").hexdigest(),))
    access.check({"x-api-key": "new"})
    with pytest.raises(Unauthorized):
        access.check({"x-api-key": KEY})


PATHS = (
    "/admin/requests/x", "/admin/slow", "/admin/blame", "/admin/slo", "/admin/doctor", "/admin/records",
    "/admin/state", "/admin/history",
)  # fmt: skip


@live
async def test_every_path_is_guarded() -> None:
    async with scene(AdminAccess((DIGEST,), loopback_only=True)) as it:
        assert {path.replace("*", "x") for _, path in it.admin.routes()} == set(PATHS)
        for path in PATHS:
            answer = await it.get(path)
            assert answer.status == 401
            assert json.loads(answer.body)["error"]["code"] == "invalid_api_key"
            assert (await it.get(path, f"x-api-key: {KEY}")).status in (200, 404)


# -- one request ---------------------------------------------------------------------------------------


@live
async def test_a_request_and_why_it_was_slow() -> None:
    async with scene() as it:
        for number in range(10):
            it.close(id=f"usual-{number}", replica="b")
        it.close(id="long", prompt_tokens=9000, first_s=1.5, stream_s=0.0, output_tokens=1)
        it.close(id="a/b ü", first_s=1.2)
        answer = await it.json("/admin/requests/a%2Fb%20%C3%BC")
        assert answer["record"]["id"] == "a/b ü"
        assert answer["running"] is False
        told = answer["explanation"]
        assert told["main"]["because"]["kind"] == "long_prefill"
        assert told["main"]["because"]["who"] == "long"
        assert "long prefill of request long (9 000 tokens)" in told["headline"]
        assert sum(part["took_s"] for part in told["parts"]) == pytest.approx(answer["record"]["e2e_s"])
        assert {"stage", "at_s", "took_s", "cause", "because", "excess_s"} == set(told["parts"][0])


@live
async def test_a_pause_of_this_process_is_named() -> None:
    async with scene() as it:
        closed = it.close(id="x", stream_s=1.4, gaps=(Gap(0.2, 1.0),))
        it.pulse.pauses.append(Pause("gc", closed.at + 0.3, 0.9))
        assert (await it.json("/admin/requests/x"))["explanation"]["main"]["because"]["kind"] == "gc_pause"


@live
async def test_of_an_id_that_was_used_twice_the_later_is_meant_and_one_long_gone_is_not_found() -> None:
    async with scene(keep=100) as it:
        it.close(id="gone")
        for number in range(100):
            it.close(id="same", output_tokens=number)
        assert (await it.json("/admin/requests/same"))["record"]["output_tokens"] == 99
        answer = await it.get("/admin/requests/gone")
        assert answer.status == 404
        assert "not among the last 100 any more" in json.loads(answer.body)["error"]["message"]


@live
async def test_a_request_that_still_waits_and_one_that_is_being_answered() -> None:
    async with scene() as it, engine() as replica:
        client = await it.ask(b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}')
        await until(lambda: it.gateway.tickets)
        waiting = await it.json("/admin/requests/mine")
        assert waiting["running"] is True
        assert waiting["record"]["outcome"] == waiting["explanation"]["outcome"] == "running"
        assert [part["stage"] for part in waiting["explanation"]["parts"]] == ["accept", "queue"]
        pool = it.join(replica)
        talk = await replica.asked()
        (ticket,) = it.gateway.tickets.values()
        prefilling = await it.json("/admin/requests/mine")
        assert [part["stage"] for part in prefilling["explanation"]["parts"]][-1] == "prefill"
        talk.send(STREAM + token("a") + token("b"))
        await until(lambda: ticket.relay is not None and ticket.relay.events == 2)
        speaking = await it.json("/admin/requests/mine")
        assert speaking["record"]["replica"] == "a"
        assert speaking["record"]["output_tokens"] == 2
        parts = speaking["explanation"]["parts"]
        assert sum(part["took_s"] for part in parts) == pytest.approx(speaking["record"]["e2e_s"])
        client.leave()
        await until(lambda: not it.gateway.tickets)
        pool.close()


# -- what tenants cost each other ----------------------------------------------------------------------


@live
async def test_which_tenant_cost_which_how_much_of_its_p99() -> None:
    async with scene() as it:
        at = monotonic() - 20
        for number in range(40):
            it.close(id=f"usual-{number}", at=at - 30 + number / 4, tenant="calm", replica="b")
        it.close(id="long", at=at, tenant="greedy", prompt_tokens=9000, first_s=1.5, stream_s=0.0, output_tokens=1)
        it.close(id="late", at=at + 0.1, tenant="calm", first_s=1.2)
        it.close(id="other lane", at=at + 0.1, tenant="calm", lane="slow", first_s=9.0)
        it.close(id="refused", tenant="poor", outcome=Outcome.LANE_FULL, first_s=0.0, stream_s=0.0, ttft_s=None)
        told = await it.json("/admin/blame?lane=fast")
        assert (told["by"], told["lane"], told["last_s"], told["of"]) == ("ttft", "fast", 300.0, 44)
        calm, greedy = told["tenants"]
        assert (calm["tenant"], calm["requests"], calm["explained"], calm["example"]) == ("calm", 41, 1, "late")
        assert calm["p99_s"] == pytest.approx(1.201)
        assert calm["own_s"] + calm["others_s"] + calm["none_s"] == pytest.approx(calm["p99_s"])
        assert (greedy["tenant"], greedy["others_s"]) == ("greedy", 0.0)
        (cost,) = told["costs"]
        assert (cost["who"], cost["whom"]) == ("greedy", "calm")
        assert cost["seconds"] == pytest.approx(calm["others_s"])
        assert cost["share"] > 0.9
        whole = await it.json("/admin/blame?by=e2e")
        assert {tail["tenant"]: tail["example"] for tail in whole["tenants"]}["calm"] == "other lane"
        assert (await it.get("/admin/blame?by=gap")).status == 400


@live
async def test_the_last_hour_and_day_are_told_in_slices() -> None:
    async with scene() as it:
        it.close(id="x")
        for query, slices, step_s in (("", 60, 10.0), ("?range=1h", 60, 60.0), ("?range=24h", 96, 900.0)):
            told = await it.json(f"/admin/history{query}")
            assert (told["slices"], told["step_s"]) == (slices, step_s)
            assert sum(part["requests"] for part in told["lanes"]["fast"]) == 1
        assert (await it.get("/admin/history?range=1w")).status == 400


@live
async def test_without_requests_no_tenant_is_blamed() -> None:
    async with scene() as it:
        told = await it.json("/admin/blame")
        assert (told["costs"], told["tenants"], told["of"]) == ([], [], 0)


# -- the slowest ---------------------------------------------------------------------------------------


@live
async def test_the_slowest_come_first_with_a_reason() -> None:
    async with scene() as it:
        it.close(id="old", at=monotonic() - 500, first_s=90.0)
        for number in range(30):
            it.close(id=f"usual-{number}")
        it.close(id="queued", queue_s=2.1, ahead=AHEAD)
        it.close(id="gappy", stream_s=1.4, gaps=(Gap(0.2, 1.0),))
        it.close(id="batch", lane="batch", first_s=60.0)
        it.close(id="never spoke", outcome=Outcome.CANCELLED, ttft_s=None, stream_s=0.0, first_s=9.0)

        async def ids(query: str) -> list[str]:
            return [row["id"] for row in (await it.json(f"/admin/slow{query}"))["slow"]]

        assert (await ids(""))[:4] == ["batch", "never spoke", "queued", "gappy"]
        assert (await ids("?lane=fast&limit=2")) == ["never spoke", "queued"]
        assert (await ids("?by=ttft&limit=2")) == ["batch", "queued"]
        assert (await ids("?by=gap")) == ["gappy"]
        assert "old" in await ids("?last=1000&limit=1")
        (row,) = (await it.json("/admin/slow?lane=fast&by=ttft&limit=1"))["slow"]
        assert row["headline"] == "2.1 s of 2.6 s in the queue behind 40 requests (8 000 tokens) of tenant acme"
        assert row["cause"] == "flood"


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/admin/slow?lane=fats", "lane"),
        ("/admin/slow?last=soon", "last"),
        ("/admin/slow?last=-1", "last"),
        ("/admin/slow?last=nan", "last"),
        ("/admin/slow?limit=0", "limit"),
        ("/admin/slow?limit=99999", "limit"),
        ("/admin/slow?by=cost", "by"),
        ("/admin/slow?lain=fast", "lain"),
        ("/admin/records?last=inf", "last"),
        ("/admin/records?limit=-5", "limit"),
        ("/admin/records?lane=fast", "lane"),
    ],
)
def test_what_makes_no_sense_is_named(path: str, param: str) -> None:
    @live
    async def run() -> None:
        async with scene() as it:
            answer = await it.get(path)
            assert answer.status == 400
            assert json.loads(answer.body)["error"]["param"] == param

    run()


# -- records, promises, state --------------------------------------------------------------------------


@live
async def test_records_are_json_lines_and_the_newest_is_last() -> None:
    async with scene(keep=10_000) as it:
        it.close(id="old", at=monotonic() - 500)
        for number in range(3000):
            it.close(id=f"r{number}")
        answer = await it.get("/admin/records?limit=2000")
        assert answer.headers["content-type"] == "application/x-ndjson"
        lines = answer.body.decode().splitlines()
        assert [json.loads(line)["id"] for line in (lines[0], lines[-1])] == ["r1000", "r2999"]
        assert len(lines) == 2000
        assert len((await it.get("/admin/records?limit=50000")).body.splitlines()) == 3000
        assert len((await it.get("/admin/records?last=1000&limit=50000")).body.splitlines()) == 3001
        assert (await it.get("/admin/records?last=0")).body == b""


@live
async def test_promises_are_as_the_alarms_say() -> None:
    async with scene() as it:
        assert (await it.json("/admin/slo"))["worst"] == "critical"


@live
async def test_the_state_has_all_that_the_page_shows() -> None:
    async with scene() as it, engine() as replica:
        pool = it.join(replica)
        for number in range(40):
            it.close(id=f"usual-{number}")
        it.close(id="queued", queue_s=2.1, ahead=AHEAD)
        it.close(id="refused", outcome=Outcome.LANE_FULL, first_s=0.0, stream_s=0.0, ttft_s=None, replica=None)
        for second in range(2):
            it.figures.held.see(1, 100 * second, monotonic() + second, 0.0)
        state = await it.json("/admin/state")
        assert set(state) == {
            "now", "version", "uptime_s", "keyed", "lanes", "replicas", "alerts", "findings", "slowest", "totals",
            "fleet", "rollouts", "shared", "outage", "verdict", "troubles", "batches",
        }  # fmt: skip
        fast = state["lanes"][0]
        assert (fast["name"], fast["waiting"], fast["running"]) == ("fast", 0, 0)
        assert fast["requests_per_s"] > 0
        assert fast["figures"]["ttft"]["p50"] == pytest.approx(0.051, rel=0.02)
        assert set(fast["figures"]["queue"]) == {"p50", "p90", "p95", "p99", "p999"}
        assert {p["percentile"]: p["state"] for p in fast["promises"] if p["figure"] == "ttft"} == {
            50: "ok", 95: "ok", 99: "critical",
        }  # fmt: skip
        assert set(fast["little"]) == {"l", "lambda", "w", "residual"}
        (shown,) = state["replicas"]
        assert (shown["id"], shown["state"], shown["version"], shown["gpu_type"]) == ("a", "up", "2", "H100")
        assert state["alerts"][0]["name"] == "queue_per_replica"
        assert state["slowest"][0]["id"] == "queued"
        assert "tenant acme" in state["slowest"][0]["headline"]
        assert state["totals"]["requests"] == 42
        assert state["totals"]["cost_per_million_tokens"] > 0
        assert state["totals"]["currency"] == "USD"
        history = it.admin.history(monotonic())
        assert history["lanes"]["fast"][-1]["requests"] == 42
        assert abs(history["lanes"]["fast"][-1]["at"] - state["now"]) < 20
        assert len(history["lanes"]["fast"][-1]["heat"]) == len(history["bands"]) + 1
        pool.close()


@live
async def test_what_was_ended_early_is_shown_with_what_that_saved() -> None:
    async with scene() as it:
        assert (await it.json("/admin/state"))["totals"]["ended_early"] == {}
        it.close(id="loops", stop="repetition", unsaid=400)
        it.close(id="loops-too", stop="repetition", unsaid=100, task="summarize")
        it.close(id="capped", cap=50, output_tokens=50)
        told = {
            "repetition": {"answers": 2, "saved_tokens": 500},
            "cap": {"answers": 1, "saved_tokens": 0},
        }
        assert (await it.json("/admin/state"))["totals"]["ended_early"] == told
        assert (await it.json("/admin/doctor"))["ended_early"] == told
    assert ended_line(told).plain == (
        "· answers ended early since the start: 1 by cap, 2 by repetition; 500 tokens not decoded"
    )
    assert ended_line({"cap": told["cap"]}).plain.endswith(": 1 by cap")


@live
async def test_the_doctor_names_the_tenant_that_floods() -> None:
    async with scene() as it:
        for number in range(100):
            it.close(id=f"usual-{number}")
        assert [f["figure"] for f in (await it.json("/admin/doctor"))["findings"]] == ["replicas"]
    async with scene() as it, engine() as replica:
        pool = it.join(replica)
        for number in range(100):
            it.close(id=f"usual-{number}", tenant="t" if number % 4 else "acme")
        for number in range(30):
            it.close(id=f"queued-{number}", tenant="t", queue_s=2.1, ahead=AHEAD)
        for number in range(90):
            it.close(id=f"flood-{number}", tenant="acme", queue_s=0.05, ahead=AHEAD)
        it.close(id="refused", outcome=Outcome.LANE_FULL, first_s=0.0, stream_s=0.0, ttft_s=None, replica=None)
        answer = await it.json("/admin/doctor")
        finding = answer["findings"][0]
        assert (finding["severity"], finding["lane"]) == ("critical", "fast")
        assert finding["cause"] == "requests wait behind a flood of tenant acme"
        assert finding["evidence"]["lost_flood_s"] > 0
        assert answer["figures"]["lanes"][0]["heaviest"] == "acme"
        assert answer["figures"]["lanes"][0]["refused"] == {"lane_full": 1}
        assert it.refreshed == 1
        pool.close()


# -- nobody waits --------------------------------------------------------------------------------------


@pytest.mark.timeout(60)
@live
async def test_a_search_through_all_that_is_kept_does_not_hold_the_loop_up() -> None:
    async with scene(keep=50_000) as it:
        now = monotonic()
        for number in range(50_000):
            it.gateway.account.open()
            it.gateway.account.close(record(id=f"r{number}", at=now - 200 + number * 0.004, replica="a"))
        it.gateway.account.fresh()
        worst, done = 0.0, asyncio.Event()

        async def watch() -> None:
            nonlocal worst
            while not done.is_set():
                began = monotonic()
                await asyncio.sleep(0)
                worst = max(worst, monotonic() - began)

        async with asyncio.TaskGroup() as group:
            group.create_task(watch())
            rows = (await it.json("/admin/slow?limit=5"))["slow"]
            done.set()
        assert len(rows) == 5
        assert worst < 0.05


@live
async def test_questions_are_bounded_and_a_client_that_leaves_stops_its_own() -> None:
    async with scene() as it:
        held = asyncio.Event()

        async def wait() -> bytes:
            await held.wait()
            return b"{}"

        exchanges: list[Exchange] = []

        def ask(exchange: Exchange) -> None:
            exchanges.append(exchange)
            it.admin._start(exchange, wait)

        async with serving(ask) as served:
            clients = [await served.connect() for _ in range(JOBS + 1)]
            for client in clients[:JOBS]:
                client.send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            await until(lambda: len(it.admin._jobs) == JOBS)
            refused = await clients[JOBS].ask(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            assert refused.status == 503
            assert "retry-after" in refused.headers
            clients[0].leave()
            await until(lambda: len(it.admin._jobs) == JOBS - 1)
            held.set()
            assert (await clients[1].answer()).body == b"{}"
            await until(lambda: not it.admin._jobs)


@live
async def test_a_question_that_fails_is_answered_all_the_same() -> None:
    async with scene() as it:

        async def fail() -> bytes:
            raise KeyError("oops")

        async with serving(lambda exchange: it.admin._start(exchange, fail)) as served:
            client = await served.connect()
            answer = await client.ask(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            assert answer.status == 500
            assert b"KeyError" in answer.body


# -- evidence ------------------------------------------------------------------------------------------


def evidence() -> Evidence:
    return Evidence(lambda: LANES, lambda replicas, now: {}, lambda: [])


def test_the_worst_few_of_each_slice_are_told_and_the_old_forgotten() -> None:
    it = evidence()
    it.take([record(id=f"x{number}", first_s=0.05 + number / 100) for number in range(100)], 1000.0)
    it.take([record(id="later", first_s=9.0), record(id="nobody's", lane="none")], 1015.0)
    told = it.slowest(1020.0, 300.0, 50)
    assert [one.record.id for one in told[:3]] == ["later", "x99", "x98"]
    assert len(told) == WORST + 1
    assert [one.record.id for one in it.slowest(1020.0, 8.0, 50)] == ["later"]
    assert it.slowest(1020.0, 300.0, 50, lane="batch") == []
    it.take([record(id="new")], 1400.0)
    assert [one.record.id for one in it.slowest(1400.0, 300.0, 50)] == ["new"]


def test_what_is_counted_of_a_lane() -> None:
    it = evidence()
    it.take(
        [
            record(cold=True, queue_s=0.5, tenant="u"),
            record(stalled_s=2.0, stream_s=3.0),
            record(engine=EngineTimings(preemptions=1)),
            record(outcome=Outcome.SLOW_CLIENT),
            record(outcome=Outcome.REPLICA_FAILED),
            record(outcome=Outcome.LANE_FULL, tenant="u", replica=None, ttft_s=None),
            record(outcome=Outcome.OVER_LIMIT, tenant="u", replica=None, ttft_s=None),
        ],
        1000.0,
    )
    seen = it.lane("fast", 1000.0, 300.0)
    assert (seen.requests, seen.cold, seen.stalled, seen.preempted, seen.failed, seen.waited) == (7, 1, 2, 1, 1, 2)
    assert seen.refused == {Outcome.LANE_FULL: 1, Outcome.OVER_LIMIT: 1}
    assert seen.tenants == {"u": 2}
    assert it.lane("batch", 1000.0, 300.0).requests == 0


def test_tenants_are_counted_up_to_a_bound() -> None:
    it = evidence()
    it.take([record(tenant=f"t{number}", queue_s=1.0) for number in range(500)], 1000.0)
    assert len(it.lane("fast", 1000.0, 300.0).tenants) == 65


def test_what_the_slowest_lost_is_added_up_by_cause() -> None:
    it = evidence()
    it.take([record(id=f"u{number}") for number in range(20)], 1000.0)
    long = record(id="long", prompt_tokens=20_000, first_s=1.0, stream_s=9.0, output_tokens=300)
    it.take(
        [
            long,
            record(id="queued", queue_s=3.0, ahead=AHEAD),
            record(id="slow tokens", at=101.5, stream_s=4.4),
            record(id="blocked", at=100.0, first_s=2.0),
        ],
        1011.0,
    )
    lost = it.losses("fast", 1011.0, 300.0)
    assert lost.first["flood"] == pytest.approx(3.0)
    assert lost.first["long_prefill"] == pytest.approx(1.95, rel=0.05)
    assert lost.tokens["generation"] > 4.0
    assert 0.2 < lost.long_beside < 0.8
    assert it.lengths("fast") == (20_000, 21, 300)
    assert it.lengths("batch") == (0, 0, 0)


def test_what_still_runs_is_asked_of_the_replicas_of_those_that_are_told() -> None:
    asked: list[set[str]] = []

    def running(replicas: set[str], now: float) -> dict[str, list[Neighbour]]:
        asked.append(replicas)
        return {}

    it = Evidence(lambda: LANES, running, lambda: [])
    refused = record(outcome=Outcome.LANE_FULL, replica=None, ttft_s=None, queue_s=3.0)
    it.take([record(replica="x", first_s=3.0), record(replica="y", first_s=3.0), refused], 1000.0)
    assert asked == [{"x", "y"}]


def test_the_lengths_of_all_answers_count_streamed_or_not() -> None:
    for told in (
        record(output_tokens=90),
        record(output_tokens=90, stream=False),
        record(output_tokens=90, stream=False, ttft_s=None),
    ):
        it = evidence()
        it.take([told], 1000.0)
        assert it.lengths("fast") == (told.prompt_tokens, 90, 90)


def test_strain_is_how_often_the_promise_would_fit() -> None:
    fast = LANES["fast"]
    assert strain_of(record(first_s=0.999), fast) == pytest.approx(2.0)
    assert strain_of(record(stream_s=14.949), fast) == pytest.approx(3.0)
    assert strain_of(record(stream_s=1.4, gaps=(Gap(0.2, 0.8),)), fast) == pytest.approx(4.0)
    assert strain_of(record(outcome=Outcome.REPLICA_FAILED), fast) == 1.0
    assert strain_of(record(stream_s=5.0, stalled_s=5.0), fast) == pytest.approx(5.0)
    assert strain_of(record(ttft_s=None, first_s=4.999, stream_s=0.0), fast) == pytest.approx(10.0)
