"""What a dispatcher decided once it decides again, given the same events, times and seed."""

import random
from pathlib import Path
from typing import cast, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.config.gateway import GatewayConfig, RoutingConfig, Tenant
from headgate.model.errors import StartupError
from headgate.model.event import Arrived, Command, Dispatch, Event, Probed, QuoteAsked, ReplicaJoined, Resumed, Tick
from headgate.model.replica import Replica
from headgate.model.tier import Tier
from headgate.policy.compose import dispatcher_for, reconfigure
from headgate.replay.event_log import NAMES, EventLog, Settings
from headgate.replay.replay import BadLog, DecisionDifference, Log, Replayed, replay
from headgate.sim.fleet import Failure, SimFleet, SimGroup
from headgate.sim.intake import SimIntake
from headgate.sim.run import Level, run
from headgate.workload.arrival import Arrival
from tests.sim.scene import machine

TENANTS = (
    Tenant(name="gold", key_sha256=("1" * 64,), tier="premium", weight=3.0),
    Tenant(name="limited", key_sha256=("2" * 64,), requests_per_min=60, tokens_per_min=50_000),
)
CONFIG = GatewayConfig(
    tenants=TENANTS,
    tiers=(Tier(name="premium", weight=4.0, reserve=0.1), Tier(name="free")),
    routing=RoutingConfig(exploration=0.2),
)


def mixed(seed: int, rate: float, count: int) -> list[Arrival]:
    """All lanes and tenants, sessions, shared prefixes, several choices."""
    rng, now, made = random.Random(seed), 0.0, []
    for _ in range(count):
        now += rng.expovariate(rate)
        made.append(
            Arrival(
                now,
                rng.choice((30, 200, 800, 1500)),
                rng.randint(1, 60),
                lane=rng.choice((None, None, "fast", "batch", "long")),
                tenant=rng.choice((None, "gold", "limited", "somebody else")),
                stream=rng.random() < 0.8,
                prefix=(rng.randint(1, 3),) if rng.random() < 0.3 else (),
                session=f"s{rng.randint(1, 9)}" if rng.random() < 0.3 else None,
                choices=rng.choice((1, 1, 1, 1, 2, 6)),
            )
        )
    return made


def record(path: Path, seed: int, rate: float, count: int, level: Level = "gateway") -> EventLog:
    """A run with everything in it: two kinds of replicas, one whose size has to be found, deaths and returns."""
    log = EventLog(path, CONFIG, seed)
    members = (
        SimGroup(profile=machine(), count=2, slots=8, cold_start_s=1.0),
        SimGroup(profile=machine(), find_slots=True),
        SimGroup(profile=machine(), lanes=frozenset(("batch",))),
    )
    failures = (Failure(0, 2.0, 5.0), Failure(2, 4.0, 4.5))
    run(CONFIG, mixed(seed, rate, count), SimFleet(members=members, failures=failures), seed, level, log=log)
    log.close()
    return log


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**64), rate=st.sampled_from((10.0, 60.0, 300.0)))
def test_any_run_replays_to_the_same_decisions(
    tmp_path_factory: pytest.TempPathFactory, seed: int, rate: float
) -> None:
    path = tmp_path_factory.mktemp("log") / "events.jsonl"
    log = record(path, seed, rate, 400)
    found = replay(path)
    assert isinstance(found, Replayed), str(found)
    assert found.events == log.events
    assert found.commands >= 400
    assert not found.truncated


def test_a_long_run_step_by_step_replays_too(tmp_path: Path) -> None:
    record(tmp_path / "log", 11, 40.0, 1500, "step")
    assert isinstance(replay(tmp_path / "log"), Replayed)


def test_questions_are_replayed_with_their_answers(tmp_path: Path) -> None:
    path, rng, now = tmp_path / "log", random.Random(5), 0.0
    log, made = EventLog(path, CONFIG, 5), dispatcher_for(CONFIG, random.Random(5))
    intake = SimIntake(CONFIG, made.lanes, made.cached_tokens)

    def hear(event: Event) -> None:
        log.add(event, now, made.on(event, now))

    hear(ReplicaJoined(Replica(id="a", url="http://a", slots=4)))
    hear(Probed("a", ok=True))
    for number in range(300):
        now += rng.expovariate(20.0)
        arrival = Arrival(now, 100, 9, tenant=rng.choice(("gold", "limited")), prefix=(rng.randint(1, 3),))
        request, _ = intake.request(arrival, number, now)
        hear(QuoteAsked(request) if rng.random() < 0.6 else Arrived(request))
    log.close()
    assert sum(b'"quote_asked"' in line for line in lines(path)) > 100
    found = replay(path)
    assert isinstance(found, Replayed), str(found)
    assert found.commands > 150


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def test_requests_that_were_there_before_are_replayed_as_well(tmp_path: Path) -> None:
    path, now = tmp_path / "log", 1.0
    log, made = EventLog(path, CONFIG, 5), dispatcher_for(CONFIG, random.Random(5))
    intake = SimIntake(CONFIG, made.lanes, made.cached_tokens)

    def hear(event: Event) -> None:
        log.add(event, now, made.on(event, now))

    hear(ReplicaJoined(Replica(id="a", url="http://a", slots=4)))
    hear(Probed("a", ok=True))
    asked = [intake.request(Arrival(now, 100, 9), number, now)[0] for number in range(9)]
    for request in asked[:3]:
        hear(Resumed(request, "a", begun=True))
    for request in asked[3:]:
        hear(Arrived(request))
    log.close()
    found = replay(path)
    assert isinstance(found, Replayed), str(found)
    assert sum(b'"resumed"' in line for line in lines(path)) == 3
    assert made.running(asked[0].lane) == 3  # the last slot is a tier's reserve


def test_another_decision_than_recorded_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "log"
    record(path, 1, 30.0, 200)
    kept = lines(path)
    at = next(number for number, line in enumerate(kept) if number > 300 and b'"dispatch"' in line)
    other = b"small-1" if b'[["dispatch"' in kept[at] and b'"replica_id":"small-0"' in kept[at] else b"small-0"
    line = msgspec.json.decode(kept[at])
    line[3][0][1]["replica_id"] = other.decode()
    kept[at] = msgspec.json.encode(line) + b"\n"
    path.write_bytes(b"".join(kept))
    found = replay(path)
    assert isinstance(found, DecisionDifference)
    assert found.event_number == at
    assert found.line == at + 1
    assert isinstance(found.expected[0], Dispatch)
    assert found.expected[0].replica_id == other.decode()
    assert found.got[0] != found.expected[0]
    assert f"event {at} (line {at + 1})" in str(found)
    assert f"replica_id: '{other.decode()}' became" in str(found)


def test_an_event_that_is_missing_makes_a_difference_at_or_after_its_place(tmp_path: Path) -> None:
    path = tmp_path / "log"
    record(path, 1, 100.0, 300)
    kept = lines(path)
    at = next(number for number, line in enumerate(kept) if number > 200 and b'"arrived"' in line)
    del kept[at]
    path.write_bytes(b"".join(kept))
    found = replay(path)
    assert isinstance(found, DecisionDifference)
    assert found.event_number >= at


def test_another_seed_decides_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "log"
    record(path, 5, 60.0, 300)
    head, _, rest = path.read_bytes().partition(b"\n")
    path.write_bytes(head.replace(b'"seed":"5"', b'"seed":"6"') + b"\n" + rest)
    assert isinstance(replay(path), DecisionDifference)


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = record(path, 2, 30.0, 50)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    found = replay(path)
    assert isinstance(found, Replayed)
    assert found.truncated
    assert found.events == log.events - 1
    path.write_bytes(whole[:-1])  # only its end of line
    found = replay(path)
    assert isinstance(found, Replayed)
    assert not found.truncated
    assert found.events == log.events


def test_a_log_of_nothing_is_the_same(tmp_path: Path) -> None:
    EventLog(tmp_path / "log", CONFIG, 1).close()
    found = replay(tmp_path / "log")
    assert isinstance(found, Replayed)
    assert (found.events, found.commands, found.span_s) == (0, 0, 0.0)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "can't read"),
        (b"", "is empty: there is nothing to replay"),
        (b"{}\n", "is no event log"),
        (b"GET / HTTP/1.1\n", "is no event log"),
    ],
)
def test_a_file_that_is_no_log_is_refused(tmp_path: Path, content: bytes | None, says: str) -> None:
    if content is not None:
        (tmp_path / "log").write_bytes(content)
    with pytest.raises(BadLog, match=says):
        replay(tmp_path / "log")


def test_a_line_that_can_not_be_read_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "log"
    record(path, 2, 30.0, 50)
    kept = lines(path)
    kept[20] = b'[1.0,"wished",{},[]]\n'
    path.write_bytes(b"".join(kept))
    with pytest.raises(BadLog, match="line 21: 'wished'"):
        replay(path)
    kept[20] = b"\x00\xff\n"
    path.write_bytes(b"".join(kept))
    with pytest.raises(BadLog, match="line 21"):
        replay(path)


def test_a_log_of_another_format_is_refused(tmp_path: Path) -> None:
    EventLog(tmp_path / "log", CONFIG, 1).close()
    content = (tmp_path / "log").read_bytes().replace(b"headgate-events-1", b"headgate-events-9")
    (tmp_path / "log").write_bytes(content)
    with pytest.raises(BadLog, match="headgate-events-9"):
        replay(tmp_path / "log")


def test_a_change_of_config_is_replayed_as_well(tmp_path: Path) -> None:
    path = tmp_path / "log"
    changed = GatewayConfig(anonymous=Tenant(name="anonymous", requests_per_min=2))
    log = EventLog(path, GatewayConfig(), 3)
    dispatcher, intake = dispatcher_for(GatewayConfig(), random.Random(3)), SimIntake(GatewayConfig())

    def tell(event: Arrived | Probed | ReplicaJoined, now: float) -> None:
        log.add(event, now, dispatcher.on(event, now))

    tell(ReplicaJoined(Replica(id="a", url="http://a", slots=100)), 0.0)
    tell(Probed("a", ok=True), 0.1)
    for number in range(20):
        if number == 10:
            reconfigure(dispatcher, changed)
            log.reconfigured(changed, 1.0)
        tell(Arrived(intake.request(Arrival(0.0, 10, 1), number, 1.0 + number / 100)[0]), 1.0 + number / 100)
    log.close()
    found = replay(path)
    assert isinstance(found, Replayed), str(found)
    kept = [line for line in lines(path) if b'"reconfigured"' not in line]
    path.write_bytes(b"".join(kept))
    assert isinstance(replay(path), DecisionDifference)


# -- the log itself -----------------------------------------------------------------------------------------


def test_keys_are_not_in_it_and_the_rest_of_the_config_is(tmp_path: Path) -> None:
    path = tmp_path / "log"
    record(path, 2, 30.0, 20)
    assert b"1" * 64 not in path.read_bytes()
    log = Log(path)
    log.close()
    again = log.config
    assert again.lanes == CONFIG.lanes
    assert [tenant.name for tenant in again.tenants] == ["gold", "limited"]
    assert again.routing == CONFIG.routing
    assert again.tiers == CONFIG.tiers


def test_it_is_written_in_the_background(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = EventLog(path, CONFIG, 1)
    log.start()
    for number in range(1000):
        log.add(Tick(), float(number), [])
    log.close()
    assert log.events == 1000
    assert log.stopped == "closed"
    assert len(lines(path)) == 1001
    log.add(Tick(), 2000.0, [])  # too late, and no harm done
    assert log.events == 1000


def test_a_log_that_can_not_keep_up_ends_and_says_so(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "log", CONFIG, 1, most_pending=10)
    for number in range(20):
        log.add(Tick(), float(number), [])
    assert "too slow" in log.stopped
    log.close()
    assert log.events == 10
    assert isinstance(replay(tmp_path / "log"), Replayed)


def test_a_log_ends_at_its_greatest_size(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "log", CONFIG, 1, most_bytes=5000)
    for number in range(1000):
        log.add(Tick(), float(number), [])
    log.close()
    assert "size" in log.stopped
    assert 0 < log.events < 1000
    assert (tmp_path / "log").stat().st_size <= 5000
    assert isinstance(replay(tmp_path / "log"), Replayed)


def test_a_disk_that_fills_up_ends_it_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog(tmp_path / "log", CONFIG, 1)
    log.add(Tick(), 1.0, [])
    log.flush()

    class Full:
        def write(self, data: bytes) -> None:
            raise OSError(28, "No space left on device")

        def flush(self) -> None:
            raise OSError(28, "No space left on device")

        close = flush

    with log._file as file:
        file.flush()
    monkeypatch.setattr(log, "_file", Full())
    log.add(Tick(), 2.0, [])
    log.flush()
    assert "No space left" in log.stopped
    log.add(Tick(), 3.0, [])
    log.close()
    assert log.events == 1
    assert isinstance(replay(tmp_path / "log"), Replayed)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_disk_that_is_full_at_the_start_is_told_at_once() -> None:
    with pytest.raises(StartupError, match="No space left"):
        EventLog(Path("/dev/full"), CONFIG, 1)


def test_a_log_that_can_not_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="can't write the event log"):
        EventLog(tmp_path / "no folder" / "log", CONFIG, 1)


class Spied:
    """A config that knows what was asked of it."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self.asked: set[str] = set()

    def __getattr__(self, name: str) -> object:
        self.asked.add(name)
        return getattr(self._config, name)


def test_whatever_of_a_config_decides_anything_is_in_the_log() -> None:
    spied = Spied(GatewayConfig())
    config = cast(GatewayConfig, spied)
    reconfigure(dispatcher_for(config, random.Random(1)), config)
    assert spied.asked
    assert spied.asked <= set(Settings.__struct_fields__), "replay/event_log.py's Settings lacks some of it"


def test_every_event_and_command_has_a_name_in_the_log() -> None:
    assert set(get_args(Event)) | set(get_args(Command)) == set(NAMES)
