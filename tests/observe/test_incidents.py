"""The flight recorder: what is drawn of the last minute, when it is kept, and what a bad disk costs."""

import asyncio
import json
import logging
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headgate.config.gateway import IncidentsConfig
from headgate.explain.explanation import headline
from headgate.explain.why import explain
from headgate.measure.conditions import Conditions
from headgate.measure.evidence import Told
from headgate.measure.pulse import Pause
from headgate.model.clock import wall
from headgate.model.outcome import Outcome
from headgate.model.record import Gap, Record
from headgate.policy.promises.alert import AlertChange, Severity
from headgate.publish.incidents import recorder as recording
from headgate.publish.incidents.digest import digest
from headgate.publish.incidents.flight import (
    EngineStep,
    FleetMoment,
    Flight,
    IncidentAlert,
    LaneMoment,
    ReplicaMoment,
)
from headgate.publish.incidents.folder import IncidentFolder
from headgate.publish.incidents.recorder import FlightRecorder, FlightSources
from headgate.publish.incidents.trace_events import MOST_REQUESTS, MOST_STEPS, trace_events
from tests.observe.test_admin import OPEN, Scene
from tests.policy.records import record
from tests.wire.serving import live

UP = ReplicaMoment("a", "headgate", "up", "up", "", 3, 8.0, 1200, 0.25, 3.0, 1.0)
DOWN = UP._replace(condition="down", state="ejected", why="probe failed", kv_ratio=None, batch_size=None, waiting=None)


def flight(**given: Any) -> Flight:
    """A minute from 1000 to 1060."""
    values: dict[str, Any] = {
        "id": "20260102T030405Z-outage", "reason": "outage turned critical", "began": 1000.0, "ended": 1060.0,
        "wall": 1_767_322_000.0, "alerts": (), "lanes": (), "fleet": (), "slowest": (), "records": (), "running": (),
        "pauses": (), "steps": (),
    }  # fmt: skip
    return Flight(**values | given)


def ended(number: int, at: float, **given: Any) -> Record:
    return record(id=f"r{number}", at=at, **given)


def told(one: Record) -> Told:
    explained = explain(one, (), ())
    return Told(1.0, 0, one, explained, headline(explained))


def check(events: list[dict[str, Any]], most_us: int = 60_000_000) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """What the format asks for; and that slices of one row lie within or beside each other. Returns them by row."""
    rows: dict[tuple[int, int], list[dict[str, Any]]] = {}
    processes = {event["pid"] for event in events if event["ph"] == "M" and event["name"] == "process_name"}
    for event in events:
        assert event["ph"] in "XCiM", event
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        assert event["name"]
        assert event["pid"] in processes
        if event["ph"] == "M":
            assert event["args"].keys() & {"name", "sort_index"}
            continue
        assert type(event["ts"]) is int
        assert 0 <= event["ts"] <= most_us
        if event["ph"] == "C":
            assert event["args"]
            assert all(isinstance(value, int | float) for value in event["args"].values())
        if event["ph"] == "X":
            assert event["dur"] > 0
            assert event["ts"] + event["dur"] <= most_us
            rows.setdefault((event["pid"], event["tid"]), []).append(event)
    for slices in rows.values():
        open_until: list[int] = []
        for one in sorted(slices, key=lambda one: (one["ts"], -one["dur"])):
            while open_until and open_until[-1] <= one["ts"]:
                open_until.pop()
            assert not open_until or one["ts"] + one["dur"] <= open_until[-1], one
            open_until.append(one["ts"] + one["dur"])
    return rows


def named(events: list[dict[str, Any]], category: str) -> list[dict[str, Any]]:
    return [event for event in events if event.get("cat") == category]


# -- the trace ---------------------------------------------------------------------------------------------------


def test_a_request_is_a_slice_with_its_stages_and_gaps_inside() -> None:
    slow = ended(1, 1010.0, queue_s=2.0, first_s=0.5, stream_s=1.5, gaps=(Gap(2.8, 0.4), Gap(3.5, 0.2)))
    events = trace_events(flight(records=(slow,), slowest=(told(slow),)))
    (row,) = check(events).values()
    assert [(one["name"], one["ts"], one["dur"]) for one in row] == [
        ("r1", 10_000_000, 4_001_000), ("accept", 10_000_000, 1000), ("queue", 10_001_000, 2_000_000),
        ("first token", 12_001_000, 500_000), ("tokens", 12_501_000, 1_500_000), ("gap", 12_800_000, 400_000),
        ("gap", 13_500_000, 200_000),
    ]  # fmt: skip
    assert row[0]["args"]["tenant"] == "t"
    assert "in the queue" in row[0]["args"]["why"]


def test_requests_at_once_are_in_rows_of_their_own_and_a_row_is_used_again() -> None:
    found = (ended(1, 1010.0, stream_s=5.0), ended(2, 1011.0, stream_s=1.0), ended(3, 1013.0, stream_s=1.0))
    rows = check(trace_events(flight(records=found)))
    assert [[one["name"] for one in row if one["cat"] == "request"] for row in rows.values()] == [["r1"], ["r2", "r3"]]


def test_what_began_before_the_minute_begins_with_it_and_what_ended_before_is_left_out() -> None:
    long, old = ended(1, 900.0, first_s=50.0, stream_s=80.0), ended(2, 990.0, stream_s=3.0)
    runs = ended(3, 995.0, first_s=65.0, stream_s=0.0)
    events = trace_events(flight(records=(old, long), running=(runs,)))
    check(events)
    requests = {event["name"]: event for event in named(events, "request")}
    assert requests.keys() == {"r1", "r3"}
    assert requests["r1"]["ts"] == 0
    assert requests["r1"]["args"]["seconds"] == pytest.approx(130.001)
    assert requests["r3"]["args"]["outcome"] == "still running"


def test_of_many_requests_the_slowest_are_drawn() -> None:
    found = tuple(ended(number, 1000.0 + number / 100, stream_s=0.1 + number % 100 / 100) for number in range(2000))
    events = trace_events(flight(records=found))
    check(events)
    shown = named(events, "request")
    assert len(shown) == MOST_REQUESTS
    assert min(one["args"]["seconds"] for one in shown) > 0.8


def test_a_replicas_states_are_slices_as_long_as_they_lasted() -> None:
    moments = [UP] * 20 + [DOWN] * 10 + [UP] * 5
    fleet = tuple(FleetMoment(1020.0 + n, (("up", 1),), (moment,)) for n, moment in enumerate(moments))
    events = trace_events(flight(fleet=fleet))
    check(events)
    states = [(one["name"], one["ts"], one["dur"]) for one in named(events, "state")]
    assert states == [
        ("up", 20_000_000, 20_000_000),
        ("ejected", 40_000_000, 10_000_000),
        ("up", 50_000_000, 10_000_000),
    ]
    counters = Counter(event["name"] for event in events if event["ph"] == "C")
    assert counters["requests"] == counters["replicas"] == 35
    assert counters["KV memory, %"] == 25  # while it was down its engine told nothing


def test_alerts_queues_and_the_gateways_own_pauses_are_there() -> None:
    alert = IncidentAlert("ttft_p99", "fast", "p99 is 3 s", 2.5)
    lanes = tuple(LaneMoment(1000.0 + n / 4, (("fast", n % 7, 2), ("slow", 0, 0))) for n in range(240))
    pauses = (Pause("loop", 1030.0, 0.2), Pause("gc", 1030.1, 0.05), Pause("gc", 1059.9, 0.4))
    events = trace_events(flight(alerts=(alert,), lanes=lanes, pauses=pauses))
    check(events)
    (mark,) = named(events, "alert")
    assert (mark["name"], mark["ts"], mark["s"]) == ("ttft_p99 of lane fast is critical", 57_500_000, "g")
    assert mark["args"] == {"message": "p99 is 3 s"}
    assert [(one["name"], one["dur"]) for one in named(events, "pause")] == [
        ("event loop held up", 200_000), ("garbage collection", 100_000),
    ]  # fmt: skip
    waiting = [event["args"]["waiting"] for event in events if event["ph"] == "C" and event["name"] == "lane fast"]
    assert waiting[:8] == [0, 1, 2, 3, 4, 5, 6, 0]


def test_an_engines_steps_are_slices_that_say_what_was_in_the_batch() -> None:
    steps = (
        EngineStep(999.0, 0.5, 0, 0, 3, 900, 0),  # before the minute
        EngineStep(1001.0, 0.02, 512, 1, 4, 4000, 2),
        EngineStep(1001.019, 0.01, 0, 0, 5, 4600, 0),  # two clocks: it seems to begin before the other has ended
        EngineStep(1001.04, 0.03, 100, 2, 0, 0, 0),
    )
    events = trace_events(flight(steps=(("a", steps),)))
    check(events)
    found = named(events, "step")
    assert [one["name"] for one in found] == ["prefill and decode", "decode", "prefill"]
    assert found[0]["args"] == {"prompt tokens": 512, "prompts": 1, "decodes": 4, "context": 4000, "KV moves": 2}
    assert found[1]["ts"] == 1_020_000


@pytest.mark.parametrize("engines", [1, 3])
def test_steps_are_bounded_and_the_latest_are_kept(engines: int) -> None:
    steps = tuple(EngineStep(1000.0 + n / 500, 0.001, 0, 0, 1, 10, 0) for n in range(20_000))
    events = trace_events(flight(steps=tuple((f"engine-{n}", steps) for n in range(engines))))
    found = named(events, "step")
    assert MOST_STEPS - engines < len(found) <= MOST_STEPS
    assert max(one["ts"] for one in found) == 39_998_000


def test_times_that_can_not_be_are_drawn_within_the_minute() -> None:
    odd = (EngineStep(-1e300, 1e300, 1, 1, 1, 1, 0), EngineStep(1e300, 1e300, -1, 0, 0, 0, 0))
    check(trace_events(flight(steps=(("a", odd),), records=(ended(1, 1059.0, stream_s=1e9),))))


# -- the digest --------------------------------------------------------------------------------------------------


def test_the_digest_tells_it_without_the_trace() -> None:
    bad = ended(1, 1010.0, outcome=Outcome.REPLICA_FAILED, message="gone")
    found = digest(
        flight(
            alerts=(IncidentAlert("outage", "", "nothing can be answered", 2.0),),
            lanes=(LaneMoment(1001.0, (("fast", 9, 4),)), LaneMoment(1002.0, (("fast", 2, 5),))),
            fleet=(FleetMoment(1001.0, (("up", 1),), (UP,)), FleetMoment(1041.0, (("down", 1),), (DOWN,))),
            records=(ended(2, 900.0), bad, ended(3, 1011.0)),
            slowest=(told(bad),),
            running=(ended(4, 1050.0),),
            steps=(("a", (EngineStep(1001.0, 0.1, 0, 0, 1, 1, 0),)),),
            pauses=(Pause("gc", 1030.0, 0.25),),
        )
    )
    found = json.loads(msgspec.json.encode(found))
    assert found["requests"] == {"ended": 2, "running": 1, "outcomes": {"replica_failed": 1, "completed": 1}}
    assert found["lanes"] == [{"name": "fast", "waiting": 2, "running": 5, "waiting_most": 9, "running_most": 5}]
    assert found["conditions"] == {"down": 1}
    (replica,) = found["replicas"]
    assert replica["states"] == [{"state": "up", "ago_s": 59.0}, {"state": "ejected", "ago_s": 19.0}]
    assert replica["why"] == "probe failed"
    assert found["slowest"][0]["headline"].startswith("replica_failed")
    assert found["longest_running"][0]["id"] == "r4"
    assert (found["steps"], found["pauses"]) == ({"a": 1}, {"count": 1, "longest_s": 0.25})


# -- the folder --------------------------------------------------------------------------------------------------


def kept(folder: IncidentFolder, number: int, size: int = 100) -> Path:
    return folder.write({"id": f"20260102T0304{number:02}Z-outage", "size": size}, [{"x": "x" * size}])


def test_what_is_written_is_json_that_lists_without_its_trace(tmp_path: Path) -> None:
    folder = IncidentFolder(tmp_path / "new" / "folder", 5, 1 << 20)
    assert (folder.digests(), folder.free_id("20260102T030401Z-x")) == ([], "20260102T030401Z-x")
    path = kept(folder, 1)
    assert json.loads(path.read_bytes())["traceEvents"] == [{"x": "x" * 100}]
    assert path.stat().st_mode & 0o777 == 0o600
    (found,) = folder.digests()
    assert (found["id"], found["bytes"]) == ("20260102T030401Z-outage", path.stat().st_size)
    assert folder.trace(found["id"]) == path.read_bytes()
    assert folder.free_id(found["id"]) == "20260102T030401Z-outage-2"


def test_the_oldest_go_when_there_are_too_many_or_too_large_ones(tmp_path: Path) -> None:
    (tmp_path / "20260101T000000Z-mine.txt").write_text("not an incident")
    (tmp_path / "notes.json").write_text("{}")
    folder = IncidentFolder(tmp_path, 3, 20_000)
    for number in range(5):
        kept(folder, number)
    assert [one["id"][13:15] for one in folder.digests()] == ["04", "03", "02"]
    kept(folder, 6, 19_800)
    assert [one["id"][13:15] for one in folder.digests()] == ["06"]
    with pytest.raises(OSError, match=r"observe\.incidents\.bytes is 20000"):
        kept(folder, 7, 20_000)
    assert [one["id"][13:15] for one in folder.digests()] == ["06"]
    assert len(list(tmp_path.iterdir())) == 3  # and two that were never its own


def test_half_a_file_of_a_writer_that_died_goes_in_time(tmp_path: Path) -> None:
    folder = IncidentFolder(tmp_path, 3, 20_000)
    left, fresh = tmp_path / ".a.json.1.new", tmp_path / ".b.json.2.new"
    left.write_text("half")
    fresh.write_text("another gateway is writing")
    os.utime(left, (1, 1))
    kept(folder, 1)
    assert not left.exists()
    assert fresh.exists()


@pytest.mark.parametrize("name", ["../../etc/passwd", "notes", "", "20260102T030401Z-a/../b", "20260102T030401Z-A"])
def test_a_name_that_is_no_incidents_is_no_files(tmp_path: Path, name: str) -> None:
    folder = IncidentFolder(tmp_path / "folder", 3, 20_000)
    kept(folder, 1)
    (tmp_path / "notes.json").write_text('{"headgate": {}}')
    assert folder.digest(name) is None
    assert folder.trace(name) is None


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\n", b'{"headgate": 3,\n', b'{"other": {},\n', b"[" * 5000])
def test_a_file_that_holds_something_else_is_left_out(tmp_path: Path, text: bytes) -> None:
    folder = IncidentFolder(tmp_path, 3, 20_000)
    kept(folder, 1)
    (tmp_path / "20260102T030402Z-broken.json").write_bytes(text)
    assert [one["id"] for one in folder.digests()] == ["20260102T030401Z-outage"]


def test_a_disk_without_room_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = IncidentFolder(tmp_path, 3, 20_000)
    full = os.open("/dev/full", os.O_WRONLY)
    real = os.open

    def opened(path: Any, flags: int, *more: int) -> int:
        if flags & os.O_CREAT:
            os.close(real(path, flags, *more))
            return os.dup(full)
        return real(path, flags, *more)

    monkeypatch.setattr(os, "open", opened)
    with pytest.raises(OSError, match="No space left"):
        kept(folder, 1)
    os.close(full)
    assert list(tmp_path.iterdir()) == []


# -- when it is recorded -------------------------------------------------------------------------------------------


class Flying:
    """A recorder with a clock of its own, beside a gateway without replicas."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.now = 5000.0
        self.scene = Scene(OPEN, 1000)
        gateway = self.scene.gateway
        sources = FlightSources(
            gateway, Conditions(gateway.dispatcher), self.scene.admin.evidence, self.scene.pulse, {},
            lambda: self.now, wall,
        )  # fmt: skip
        config = IncidentsConfig(**settings)
        self.recorder = FlightRecorder(sources, config, IncidentFolder(folder, config.files, config.bytes))

    def alert(self, name: str = "outage", severity: Severity = Severity.CRITICAL) -> None:
        self.recorder.heed(
            AlertChange(
                alert=name, lane="", was=Severity.OK, severity=severity, value=None, bound=1.0, since=self.now,
                at=self.now, message=f"{name} it is",
            )
        )  # fmt: skip

    async def later(self, seconds: float) -> None:
        """Time passes; the recorder samples and looks as in a gateway, and what it begins to write is written."""
        ends = self.now + seconds
        while self.now < ends:
            self.now += 0.25
            self.recorder.sample_lanes(self.now)
            if self.now % 1 == 0:
                self.recorder.sample_fleet(self.now)
                self.recorder.look(self.now)
                await self.recorder.close(5.0)

    @property
    def kept(self) -> list[dict[str, Any]]:
        return self.recorder.folder.digests()


def flying(test: Callable[[Flying], Any], folder: Path, **settings: Any) -> None:
    @live
    async def run() -> None:
        it = Flying(folder, **settings)
        await test(it)
        await it.scene.gateway.finish(0)
        it.scene.admin.close()

    run()


def test_an_alert_that_turns_critical_keeps_the_last_minute(tmp_path: Path) -> None:
    async def test(it: Flying) -> None:
        await it.later(120)
        it.alert("ttft_p95", Severity.WARNING)
        await it.later(5)
        assert it.kept == []
        it.alert()
        await it.later(1)
        it.alert("failed_share")
        assert it.kept == []
        await it.later(2)
        (found,) = it.kept
        assert found["id"].endswith("Z-outage")
        assert found["reason"] == "outage turned critical, and 1 more alerts"
        assert [alert["message"] for alert in found["alerts"]] == ["outage it is", "failed_share it is"]
        trace = json.loads(it.recorder.folder.trace(found["id"]) or b"")
        check(trace["traceEvents"])
        lanes = [event for event in trace["traceEvents"] if event["name"] == "lane fast"]
        assert 239 <= len(lanes) <= 241

    flying(test, tmp_path)


def test_what_follows_within_a_minute_is_one_incident_more_and_an_hour_has_so_few(tmp_path: Path) -> None:
    async def test(it: Flying) -> None:
        for _ in range(3):
            it.alert()
            await it.later(4)
        assert len(it.kept) == 1
        await it.later(60)
        newest, _ = it.kept
        assert len(newest["alerts"]) == 2
        it.alert()
        await it.later(62)
        assert (len(it.kept), it.recorder.skipped) == (2, 1)
        it.now += 3600
        it.alert()
        await it.later(3)
        assert (len(it.kept), it.recorder.skipped) == (3, 1)

    flying(test, tmp_path, per_hour=2)


def test_none_an_hour_are_none_but_those_asked_for(tmp_path: Path) -> None:
    async def test(it: Flying) -> None:
        it.alert()
        await it.later(5)
        assert (it.kept, it.recorder.skipped) == ([], 0)
        found = await it.recorder.record("because")
        assert found is not None
        assert (found["reason"], found["id"].endswith("Z-asked")) == ("because", True)
        assert [one["id"] for one in it.kept] == [found["id"]]

    flying(test, tmp_path, per_hour=0)


def test_a_folder_that_can_not_be_written_is_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")

    async def test(it: Flying) -> None:
        it.alert()
        await it.later(10)
        assert it.recorder.failed == 1
        assert await it.recorder.record("again") is None

    with caplog.at_level(logging.WARNING):
        flying(test, tmp_path / "file" / "incidents")
    assert [(one.levelname, one.exc_info) for one in caplog.records] == [("ERROR", None)] * 2
    assert "could not be kept in" in caplog.records[0].getMessage()
    assert "Not a directory" in caplog.records[0].getMessage()


def test_what_is_remembered_is_bounded(tmp_path: Path) -> None:
    async def test(it: Flying) -> None:
        for number in range(1000):
            it.alert(f"alert_{number}")
        await it.later(600)
        recorder: Any = it.recorder
        assert len(recorder._lanes) == recording.LANE_MOMENTS
        assert len(recorder._fleet) == recording.FLEET_MOMENTS
        assert len(it.kept[0]["alerts"]) == recording.MOST_ALERTS

    flying(test, tmp_path)


def test_two_at_once_are_written_one_after_the_other(tmp_path: Path) -> None:
    async def test(it: Flying) -> None:
        found = await asyncio.gather(*(it.recorder.record(f"number {number}") for number in range(3)))
        assert len({one["id"] for one in found if one is not None}) == 3
        assert sorted(one["reason"] for one in it.kept) == ["number 0", "number 1", "number 2"]

    flying(test, tmp_path)
