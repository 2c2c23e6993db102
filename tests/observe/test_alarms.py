import asyncio
import json
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from headgate.config.gateway import ObserveConfig
from headgate.gateway.account import Account
from headgate.measure.figures import Figures
from headgate.model.clock import monotonic
from headgate.model.event import Arrived, Probed, ReplicaJoined, ReplicaLeft
from headgate.model.lane import LANES, Lane
from headgate.model.outcome import Outcome
from headgate.model.record import Record
from headgate.model.replica import Replica
from headgate.model.request import Request
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.promises.alert import AlertChange, Severity
from headgate.policy.replicas.health import Health
from headgate.publish.alarms import Alarms
from headgate.publish.webhook import Webhook
from headgate.wire.exchange import Exchange
from tests.observe.records import compliance
from tests.policy.driven import settings_of
from tests.wire.serving import live, serving, until

WALL = 1_700_000_000.0


@dataclass
class FakeSketch:
    value: float | None = 0.01
    count: int = 1000

    def quantiles(self, qs: Sequence[float], beyond: float = 0.0) -> list[float | None]:
        return [self.value for _ in qs]


@dataclass
class FakeCounts:
    requests: int = 1000
    cold: int = 0
    asked: int = 1000
    missed: int = 0
    failed: int = 0
    over_limit: int = 0

    def beyond(self, figure: str, having: int) -> float:
        return 0.0


class FakeFigures:
    def __init__(self) -> None:
        self.sketches: dict[tuple[str, int, str | None], FakeSketch] = {}
        self.counted = FakeCounts()
        self.asked: list[str | None] = []

    def sketch(self, figure: str, window_s: int, now: float, *, lane: str | None = None) -> FakeSketch:
        self.asked.append(lane)
        return self.sketches.get((figure, window_s, lane), FakeSketch())

    def counts(self, window_s: int, now: float, *, lane: str | None = None) -> FakeCounts:
        return self.counted


class Scene:
    def __init__(
        self, *replicas: Replica, lanes: dict[str, Lane] | None = None, webhook: Webhook | None = None
    ) -> None:
        self.dispatcher = Dispatcher(settings_of(dict(lanes or LANES)), Health(), random.Random(1))
        self.now = 100.0
        for one in replicas:
            self.join(one)
        self.figures = FakeFigures()
        self.account = Account(100)
        self.alarms = Alarms(
            self.figures, self.dispatcher, self.account, ObserveConfig(), lambda: WALL + self.now, webhook
        )

    def join(self, one: Replica) -> None:
        self.dispatcher.on(ReplicaJoined(one), self.now)
        self.dispatcher.on(Probed(one.id, ok=True), self.now)

    def look(self, seconds: int = 1) -> list[AlertChange]:
        changes: list[AlertChange] = []
        for _ in range(seconds):
            changes += self.alarms.look(self.now)
            self.now += 1.0
        return changes

    def close(self, outcome: Outcome, lane: str = "fast", count: int = 1) -> None:
        for _ in range(count):
            self.account.close(Record(id="x", at=self.now, lane=lane, tenant="t", model="m", outcome=outcome))


def replica(name: str = "a", slots: int = 4, **tags: str) -> Replica:
    return Replica(id=name, url="http://127.0.0.1:1", slots=slots, tags=tags)


def request(number: int, now: float) -> Request:
    return Request(
        id=f"r{number}",
        arrived=now,
        model="m",
        lane="batch",
        priority=3,
        wait_until=now + 1e4,
        first_token_by=now + 1e4,
    )


# -- what is read -----------------------------------------------------------------------------------------------------


def test_a_broken_promise_is_one_readable_line_at_error_and_its_end_one_at_info(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "headgate.publish.alarms")
    scene = Scene(replica())
    assert scene.look() == []
    scene.figures.sketches["e2e", 300, "fast"] = FakeSketch(4.2)
    scene.look()
    scene.figures.sketches["e2e", 300, "fast"] = FakeSketch(31.0)
    scene.look()
    scene.figures.sketches.clear()
    scene.look(40)
    lines = [(line.levelname, line.getMessage()) for line in caplog.records]
    assert [level for level, line in lines if "e2e_p95" in line] == ["WARNING", "ERROR", "INFO"]
    assert lines[0][1].startswith(
        "alert e2e_p95 of lane fast: ok → warning: end-to-end time p95 is 4.2 s over the last 5 min, "
        "84 % of the promised 5 s (1000 requests). Look for answers that grow"
    )
    assert all("\n" not in line for _, line in lines)


def test_each_lane_is_read_with_the_percentiles_it_needs_and_each_sketch_once() -> None:
    scene = Scene(replica())
    scene.look()
    # ttft, tpot, gaps and short answers over a minute and five, unstreamed answers over five; fast also all answers,
    # over five. Long and batch promise nothing of e2e.
    assert {lane: scene.figures.asked.count(lane) for lane in LANES} == {"fast": 10, "slow": 9, "long": 7, "batch": 7}


def test_of_many_lanes_a_few_are_read_each_time_and_all_of_them_in_turn() -> None:
    lanes = {f"l{n}": replace(LANES["fast"], name=f"l{n}") for n in range(20)}
    scene = Scene(replica(), lanes=lanes)
    for _ in range(5):
        before = len(scene.figures.asked)
        scene.look()
        assert len(set(scene.figures.asked[before:])) <= 4
    assert set(scene.figures.asked) == set(lanes)


def test_failures_are_counted_from_the_account_once_each_and_clients_faults_are_none() -> None:
    scene = Scene(replica())
    scene.close(Outcome.COMPLETED, count=100)
    scene.close(Outcome.CANCELLED, count=50)
    scene.close(Outcome.OVER_LIMIT, count=50)
    scene.close(Outcome.INVALID, count=50)
    assert scene.look(10) == []
    assert scene.alarms.state()["burn"]["fast"] == {"5m": 0.0, "30m": 0.0, "1h": 0.0, "6h": 0.0}
    scene.close(Outcome.REPLICA_FAILED, count=2)
    scene.close(Outcome.NO_REPLICA, count=2)
    scene.look(5)
    assert scene.alarms.state()["burn"]["fast"]["5m"] == pytest.approx(4 / 104 / 0.001)
    scene.close(Outcome.ENGINE_FAILED)
    scene.close(Outcome.REPLICA_STALLED, lane="slow")
    assert [(c.alert, c.lane, c.severity) for c in scene.look(5)] == [
        ("error_budget", "fast", Severity.CRITICAL),
        ("failed_share", "fast", Severity.WARNING),
    ]


def test_waiting_and_utilisation_come_from_the_dispatcher() -> None:
    scene = Scene(replica("a", 2), replica("b", 2))
    for number in range(24):
        scene.dispatcher.on(Arrived(request(number, scene.now)), scene.now)
    waiting = scene.dispatcher.waiting("batch")
    assert waiting > 16
    changes = scene.look(80)
    assert [(change.alert, change.value) for change in changes] == [
        ("queue_per_replica", waiting / 2),
        ("utilisation", pytest.approx((24 - waiting) / 4)),
    ]


def test_without_replicas_all_that_wait_wait_for_one_and_nothing_is_divided_by_none() -> None:
    scene = Scene()
    for number in range(9):
        scene.dispatcher.on(Arrived(request(number, scene.now)), scene.now)
    assert [(c.alert, c.value) for c in scene.look(20)] == [("queue_per_replica", 9.0)]


def test_replicas_that_come_into_use_later_are_told_from_those_there_at_the_start() -> None:
    scene = Scene()
    scene.look(10)
    scene.join(replica("a"))
    scene.look(10)
    scene.join(replica("b"))
    scene.figures.counted.cold = 500
    assert scene.look(570) == []  # the first one, and one soon after it
    scene.figures.counted.cold = 0
    scene.look(900)
    scene.join(replica("c", version="2"))
    scene.look()
    scene.figures.counted.cold = 20
    (change,) = scene.look(20)
    assert change.alert == "cold_starts"
    assert "since c (version 2) came into use" in change.message


def test_a_replica_that_was_out_and_is_back_came_into_use_and_so_did_one_that_took_its_place() -> None:
    for how in ("out", "replaced"):
        scene = Scene(replica("a"), replica("b"))
        scene.look(1500)
        if how == "out":
            load = scene.dispatcher.index.loads["b"]
            load.usable = 0.0
            scene.look()
            load.usable = 0.1
        else:
            scene.dispatcher.on(ReplicaLeft("b"), scene.now)
            scene.join(replica("b", version="9"))
        scene.figures.counted.cold = 20
        (change,) = scene.look(20)
        assert ("since b (version 9)" if how == "replaced" else "since b came") in change.message


def test_other_promises_of_a_reloaded_config_are_judged_from_the_next_look_on() -> None:
    scene = Scene(replica())
    scene.figures.sketches["ttft", 300, "fast"] = FakeSketch(0.6)
    assert {c.alert for c in scene.look()} == {"ttft_p50", "ttft_p95"}
    scene.dispatcher.lanes["fast"] = replace(LANES["fast"], ttft_target_s=2.0, ttft_p50_s=None)
    assert {(c.alert, c.severity) for c in scene.look()} == {("ttft_p50", Severity.OK), ("ttft_p95", Severity.OK)}
    assert "ttft_p50" not in [f"{p['figure']}_p{p['percentile']}" for p in scene.alarms.state()["promises"][:2]]


def test_state_is_json_and_says_all_that_the_page_shows() -> None:
    scene = Scene(replica())
    scene.look(30)
    scene.figures.sketches["ttft", 300, "fast"] = FakeSketch(0.45)
    scene.look(11)
    state = json.loads(json.dumps(scene.alarms.state()))
    assert state["worst"] == "warning"
    assert state["promises"][1] == {
        "lane": "fast", "figure": "ttft", "percentile": 95, "within_s": 0.5, "state": "warning", "value_s": 0.45,
        "arrivals_s": 0.45, "served_s": 0.45, "missed": False, "refused_or_failed": 0, "count": 1000,
        "since_s": 10.0, "message": state["alerts"][1]["message"],
    }  # fmt: skip
    assert [(a["name"], a["lane"], a["severity"], a["since_s"]) for a in state["alerts"]] == [
        ("ttft_p50", "fast", "warning", 10.0),
        ("ttft_p95", "fast", "warning", 10.0),
    ]
    assert {"queue_per_replica", "utilisation", "cold_starts", "error_budget"} < {a["name"] for a in state["watched"]}
    assert state["availability"] == 0.999
    assert state["usual_ttft_s"] == dict.fromkeys(LANES)
    assert state["recent"][0]["at"] == WALL + 130.0
    assert state["webhook"] is None


def test_what_is_remembered_of_changes_is_bounded() -> None:
    scene = Scene(replica())
    for _ in range(80):
        scene.figures.sketches["ttft", 300, "fast"] = FakeSketch(0.9)
        scene.look()
        scene.figures.sketches["ttft", 300, "fast"] = FakeSketch(0.1)
        scene.look(32)
    assert len(scene.alarms.state()["recent"]) == 100


def test_with_the_real_figures_slow_requests_break_a_promise_within_a_look() -> None:
    scene = Scene(replica())
    figures = Figures(LANES, ObserveConfig(), scene.now)
    alarms = Alarms(figures, scene.dispatcher, scene.account, ObserveConfig(), lambda: WALL)
    for second in range(20):
        now = scene.now + second
        for n in range(10):
            record = Record(
                id=f"{second}-{n}", at=now, lane="fast", tenant="t", model="m", outcome=Outcome.COMPLETED,
                ttft_s=0.7, tpot_s=0.02, e2e_s=1.0, cold=second == 0,
            )  # fmt: skip
            scene.account.close(record)
        figures.take(scene.account.fresh(), now)
        changes = alarms.look(now)
        if second == 1:
            assert {c.alert for c in changes} == {"ttft_p50", "ttft_p95"}
            assert changes[0].value == pytest.approx(0.7, rel=0.01)
        elif second != 9:
            assert changes == []


def with_figures(scene: Scene) -> tuple[Figures, Alarms]:
    figures = Figures(LANES, ObserveConfig(), scene.now)
    return figures, Alarms(figures, scene.dispatcher, scene.account, ObserveConfig(), lambda: WALL)


def test_a_lane_that_refuses_most_of_its_requests_keeps_no_promise() -> None:
    """520 of 859 were refused, and the rest served in time: nothing about that is well."""
    scene = Scene(replica())
    scene.account = Account(1000)
    figures, alarms = with_figures(scene)
    served: dict[str, Any] = {
        "outcome": Outcome.COMPLETED, "ttft_s": 0.1, "tpot_s": 0.02, "e2e_s": 1.0, "stream": True, "output_tokens": 40,
    }  # fmt: skip
    for n in range(859):
        how = {"outcome": Outcome.WOULD_WAIT_TOO_LONG} if n % 859 < 520 else served
        scene.account.close(Record(id=f"r{n}", at=scene.now, lane="fast", tenant="t", model="m", **how))
    figures.take(scene.account.fresh(), scene.now)
    changes = {(c.alert, c.lane): c for c in alarms.look(scene.now)}
    state = json.loads(json.dumps(alarms.state(), allow_nan=False))
    assert state["worst"] == state["lanes"]["fast"]["state"] == "critical"
    assert state["lanes"]["fast"]["availability"]["5m"] == {
        "share": pytest.approx(339 / 859), "asked": 859, "answered": 339, "refused": 520, "failed": 0,
    }  # fmt: skip
    assert changes["refused_share", "fast"].severity is Severity.CRITICAL
    assert changes["error_budget", "fast"].severity is Severity.CRITICAL
    assert state["burn"]["fast"]["5m"] == pytest.approx(520 / 859 / 0.001)
    (p50,) = [p for p in state["promises"] if (p["lane"], p["figure"], p["percentile"]) == ("fast", "ttft", 50)]
    assert (p50["state"], p50["missed"], p50["arrivals_s"], p50["refused_or_failed"]) == ("critical", True, None, 520)
    assert p50["served_s"] == pytest.approx(0.1, rel=0.01)
    assert "520 of them refused or failed; 99.8 ms over the served" in p50["message"]
    assert {round(kept.share, 6) for kept in compliance(figures, "fast", scene.now)} == {round(339 / 859, 6)}
    assert {kept.served for kept in compliance(figures, "fast", scene.now)} == {1.0}
    # Nobody came to the others: that is neither well nor ill.
    for lane in ("slow", "long", "batch"):
        assert state["lanes"][lane]["state"] == "idle"
        assert state["lanes"][lane]["availability"]["1h"]["share"] is None
        assert {p["state"] for p in state["promises"] if p["lane"] == lane} == {"idle"}
        assert compliance(figures, lane, scene.now) == []


def test_a_few_that_got_no_answer_are_not_enough_to_call_a_lane_well() -> None:
    scene = Scene(replica())
    scene.look()
    assert scene.alarms.state()["worst"] == "idle"
    scene.close(Outcome.COMPLETED, count=4)
    scene.look()
    assert (scene.alarms.state()["lanes"]["fast"]["state"], scene.alarms.state()["worst"]) == ("ok", "ok")
    scene.close(Outcome.LANE_FULL, count=2)
    scene.look()
    assert scene.alarms.state()["lanes"]["fast"]["state"] == "unknown"
    scene.dispatcher.on(Arrived(request(1, scene.now)), scene.now)
    assert scene.alarms.state()["lanes"]["batch"]["state"] == "ok"  # somebody is there


def test_an_outage_is_said_at_the_next_look_and_the_end_of_it_a_few_seconds_after() -> None:
    scene = Scene(replica("a"), replica("b"))
    scene.look(5)
    for name in ("a", "b"):
        load = scene.dispatcher.index.loads[name]
        load.usable = 0.0
        scene.dispatcher.index.changed(load)
    (change,) = scene.look()
    assert (change.alert, change.severity) == ("no_usable_replica", Severity.CRITICAL)
    assert change.message.startswith("no replica is usable, nothing can be answered (2 down)")
    state = scene.alarms.state()
    assert (state["outage"], state["worst"], state["fleet"]["down"]) == (True, "critical", ["a", "b"])
    assert [c.alert for c in scene.look(20)] == ["replica_down"]
    load.usable = 1.0
    scene.dispatcher.index.changed(load)
    assert [(c.alert, c.severity) for c in scene.look(8)] == [("no_usable_replica", Severity.OK)]
    assert "1 of 2 replicas down: a" in next(a["message"] for a in scene.alarms.state()["alerts"])


# -- the webhook ------------------------------------------------------------------------------------------------------


class Receiver:
    """Answers with these statuses, then always 200; None closes the connection without a word."""

    def __init__(self, *statuses: int | None) -> None:
        self.statuses = list(statuses)
        self.got: list[tuple[str, dict[str, Any]]] = []
        self.held: list[Exchange] = []
        self.hold = False

    def __call__(self, exchange: Exchange) -> None:
        if self.hold:
            self.held.append(exchange)
            return
        status = self.statuses.pop(0) if self.statuses else 200
        if status is None:
            exchange.abort()
            return
        if status == 200:
            path = exchange.path + (f"?{exchange.query}" if exchange.query else "")
            assert exchange.headers["content-type"] == "application/json"
            self.got.append((path, json.loads(exchange.body)))
        exchange.respond(status, b"{}")


def changed(scene: Scene) -> None:
    scene.figures.sketches["ttft", 300, "fast"] = FakeSketch(0.9)
    scene.look()


@live
async def test_each_change_is_posted_with_what_a_person_and_a_machine_need() -> None:
    receiver = Receiver()
    async with serving(receiver) as served:
        scene = Scene(replica(), webhook=Webhook(f"http://127.0.0.1:{served.port}/hooks/s3cret?a=b", monotonic))
        changed(scene)
        await until(lambda: len(receiver.got) == 2)
        path, body = receiver.got[1]
        assert path == "/hooks/s3cret?a=b"
        assert body == {
            "alert": "ttft_p95", "lane": "fast", "was": "ok", "severity": "critical", "value": 0.9, "bound": 0.5,
            "since": WALL + 100.0, "at": WALL + 100.0, "message": body["message"],
            "verdict": "Broken: fast TTFT p50 is 900 ms, promised 500 ms, and 1 more · 1 of 1 replica · 0 refused",
            "text": f"CRITICAL: ttft_p95 of lane fast: {body['message']}",
        }  # fmt: skip
        assert body["message"].startswith("TTFT p95 is 900 ms")
        await until(lambda: scene.alarms.state()["webhook"]["sent"] == 2)
        told = scene.alarms.state()["webhook"]
        assert told["host"] == f"127.0.0.1:{served.port}"
        assert "s3cret" not in json.dumps(told)
        await scene.alarms.close()


@live
async def test_a_receiver_that_fails_twice_and_then_works_gets_everything_once_and_in_order() -> None:
    for failures in ((500, 503), (None, 429)):
        receiver = Receiver(*failures)
        async with serving(receiver) as served:
            hook = Webhook(f"http://127.0.0.1:{served.port}", monotonic, backoff_s=(0.001, 0.001, 0.001))
            for number in range(5):
                hook.post(b'{"n":%d}' % number)
            await until(lambda h=hook: h.sent == 5)  # type: ignore[misc]
            assert [body["n"] for _, body in receiver.got] == [0, 1, 2, 3, 4]
            assert (hook.failed, hook.dropped, hook.waiting) == (0, 0, 0)
            await hook.close()


@live
async def test_one_that_keeps_failing_is_given_up_after_three_more_tries_and_the_next_is_tried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    receiver = Receiver(500, 500, 500, 500)
    async with serving(receiver) as served:
        hook = Webhook(f"http://127.0.0.1:{served.port}/s3cret", monotonic, backoff_s=(0.001, 0.001, 0.001))
        hook.post(b'{"n":1}')
        hook.post(b'{"n":2}')
        await until(lambda: hook.sent == 1)
        assert [body["n"] for _, body in receiver.got] == [2]
        assert (hook.failed, hook.last_error) == (1, "it answered 500")
        assert "given up" in caplog.text
        assert "s3cret" not in caplog.text
        await hook.close()


@live
async def test_what_is_refused_for_good_is_not_tried_again() -> None:
    receiver = Receiver(404)
    async with serving(receiver) as served:
        hook = Webhook(f"http://127.0.0.1:{served.port}", monotonic, backoff_s=(60.0,))
        hook.post(b"{}")
        await until(lambda: hook.failed == 1)
        hook.post(b"{}")
        await until(lambda: hook.sent == 1)
        await hook.close()


@live
async def test_nobody_there_is_an_error_that_is_counted_and_hurts_nobody() -> None:
    async with serving(Receiver()) as served:
        port = served.port
    hook = Webhook(f"http://127.0.0.1:{port}", monotonic, backoff_s=(0.001,))
    hook.post(b"{}")
    await until(lambda: hook.failed == 1)
    assert hook.last_error == "it could not be reached"
    await hook.close()


@live
async def test_while_the_receiver_is_slow_the_latest_64_are_kept_and_the_rest_counted() -> None:
    receiver = Receiver()
    receiver.hold = True
    async with serving(receiver) as served:
        hook = Webhook(f"http://127.0.0.1:{served.port}", monotonic)
        hook.post(b'{"n":-1}')
        await until(lambda: receiver.held)  # under way: no longer in the queue
        for number in range(100):
            hook.post(b'{"n":%d}' % number)
        assert (hook.waiting, hook.dropped) == (64, 36)
        receiver.hold = False
        receiver.held.pop().respond(200, b"{}")
        await until(lambda: hook.sent == 65)
        assert [body["n"] for _, body in receiver.got] == list(range(36, 100))
        await hook.close()


@live
async def test_closing_ends_what_is_under_way() -> None:
    receiver = Receiver()
    receiver.hold = True
    async with serving(receiver) as served:
        before = asyncio.all_tasks()
        hook = Webhook(f"http://127.0.0.1:{served.port}", monotonic)
        hook.post(b"{}")
        await until(lambda: receiver.held)
        await hook.close()
        await hook.close()
        assert asyncio.all_tasks() == before
        await until(lambda: receiver.held[0].done)


@live
async def test_a_name_and_password_in_the_address_are_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"observe\.webhook.*not sent"):
        Webhook("http://me:secret@127.0.0.1/", monotonic)
