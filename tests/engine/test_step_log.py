"""What is written of every step, what comes back of it, and what happens when it can't be written."""

import json
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from headgate import line_file
from headgate.engine.emulation import emulated_config, emulated_engine
from headgate.engine.engine import Engine, EngineRequest, SequenceOutput
from headgate.engine.runner.profile_file import dump, find, fitted, load
from headgate.engine.runner.step_log import StepLog, StepLogHeader, header_of, read, read_header
from headgate.machine.profile import PROFILES, Residuals, StepCost
from headgate.machine.step_features import StepFeatures, shape
from headgate.model.clock import monotonic
from headgate.model.errors import StartupError
from headgate.model.step import Restore, Row, Save, Step
from tests.scripted import sequence

HEADER = StepLogHeader(profile={"name": "test", "model": "test"})
FULL = Path("/dev/full")
QUICK = replace(
    PROFILES["h100-llama3-8b"],
    name="quick",
    cost=StepCost(fixed=0.001, per_prefill=0.00002, per_decode=0.0001),
    slots=8,
    context=512,
    kv_tokens=4096,
)


def step(number: int = 0) -> Step:
    prefilling, decoding = sequence(1, range(100)), sequence(2, range(40 + number))
    decoding.tokens.append(7)
    rows = (Row(prefilling, 0, 16, 20, False), Row(decoding, 1, 40 + number, 1, True))
    return Step((Save(3, 9, 50), Restore(9, 4, 30)), rows)


def eventually(true: Callable[[], bool]) -> None:
    tick = threading.Event()
    for _ in range(1000):
        if true():
            return
        tick.wait(0.01)
    raise AssertionError("it never came true")


# -- writing and reading --------------------------------------------------------------------------------------------


def test_what_is_logged_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    log = StepLog(path, HEADER, 100.0)
    for number in range(5):
        log.take(step(number), 100.5 + number, 0.02, 0.015)
    log.close()
    back = list(read(path))
    assert [line.shape for line in back] == [shape(step(number)) for number in range(5)]
    assert [line.at for line in back] == [0.5, 1.5, 2.5, 3.5, 4.5]
    assert {(line.took_s, line.run_s) for line in back} == {(0.02, 0.015)}
    assert read_header(path) == HEADER


def test_a_line_can_be_read_by_people(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    log = StepLog(path, HEADER, 100.0)
    log.take(step(), 100.5, 0.02, 0.015)
    log.close()
    header, line = map(json.loads, path.read_text().splitlines())
    assert header["headgate"] == "step log"
    assert line == {
        "at": 0.5, "took_s": 0.02, "run_s": 0.015, "prefill": [[16, 20]], "decodes": 1, "context": 41, "save": 50,
        "load": 30, "moves": 2, "sequences": 2,
    }  # fmt: skip


def test_lines_are_there_before_the_log_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    log = StepLog(path, HEADER, 0.0, flush_s=0.01)
    log.take(step(), 1.0, 0.02, 0.015)
    eventually(lambda: len(path.read_bytes().splitlines()) == 2)
    log.close()


def test_times_of_a_stretched_engine_are_read_as_the_profiles(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    log = StepLog(path, StepLogHeader(profile={}, emulated="quick", dilation=4.0), 0.0)
    log.take(step(), 8.0, 0.04, 0.02)
    log.close()
    (line,) = read(path)
    assert (line.at, line.took_s, line.run_s) == (2.0, 0.01, 0.005)


def test_an_unwritable_path_stops_the_start_and_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"can't write the step log .*No such file.*--step-log"):
        StepLog(tmp_path / "none" / "steps.jsonl", HEADER, 0.0)
    with pytest.raises(StartupError, match=r"Is a directory.*--step-log"):
        StepLog(tmp_path, HEADER, 0.0)

    if FULL.exists():
        with pytest.raises(StartupError, match=r"No space left.*--step-log"):
            StepLog(FULL, HEADER, 0.0)


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_a_disk_that_is_full_ends_the_log_and_not_the_engine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = StepLog(tmp_path / "steps.jsonl", HEADER, 0.0, flush_s=0.01)
    log.file._file.close()
    log.file._file = FULL.open("wb")
    log.take(step(), 1.0, 0.02, 0.015)
    eventually(lambda: log.file._broken)
    for _ in range(3):
        log.take(step(), 1.0, 0.02, 0.015)
    log.close()
    assert log.file.dropped == 4
    assert [record.message.split("steps.jsonl ")[1] for record in caplog.records] == [
        "ends here: [Errno 28] No space left on device",
        "lacks 4 lines",
    ]


def test_what_waits_to_be_written_and_the_file_have_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "steps.jsonl"
    monkeypatch.setattr(line_file, "MOST_WAITING", 3)
    log = StepLog(path, HEADER, 0.0, flush_s=60.0)
    for _ in range(10):
        log.take(step(), 1.0, 0.02, 0.015)
    log.close()
    assert len(list(read(path))) == 3
    assert json.loads(path.read_bytes().splitlines()[-1]) == {"dropped": 7}
    assert log.file.dropped == 7

    monkeypatch.setattr(line_file, "MOST_BYTES", 100)
    small = StepLog(path, HEADER, 0.0, flush_s=0.01)
    small.take(step(), 1.0, 0.02, 0.015)
    eventually(lambda: small.file._broken)
    small.take(step(), 1.0, 0.02, 0.015)
    small.close()
    assert len(list(read(path))) == 1
    assert "ends here" in caplog.text


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "line 1: not the header"),
        ('{"some": "json"}\n', "line 1: not the header"),
        ('HEADER\n{"at":1,"took_s":0.1}\nnonsense\n', "line 3: not a step"),
        ('HEADER\n{"at":"noon","took_s":0.1}\n', "line 2: not a step"),
        ('HEADER\n{"took_s":0.1}\n', "line 2: a step needs at"),
        ('{"headgate":"step log","profile":{},"dilation":0}\n', "line 1: .*dilation"),
        ('{"headgate":"step log","profile":{},"version":9}\n', "line 1: .*version 9"),
    ],
)
def test_a_line_that_makes_no_sense_is_named_by_its_number(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text(text.replace("HEADER", '{"headgate":"step log","profile":{"model":"a"}}'))
    with pytest.raises(StartupError, match=named):
        fitted(path, "a")


def test_half_a_line_at_the_end_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text('{"headgate":"step log","profile":{}}\n{"at":1,"took_s":0.1,"decodes":1}\n{"at":2,"to')
    assert [line.shape for line in read(path)] == [StepFeatures(decodes=1)]
    with pytest.raises(StartupError, match="--step-log"):
        read_header(tmp_path / "none")


# -- an engine's own log, and the profile that comes of it -------------------------------------------------------------


@pytest.fixture
def engine() -> Iterator[tuple[Engine, list[SequenceOutput], threading.Condition]]:
    heard: list[SequenceOutput] = []
    changed = threading.Condition()

    def hear(said: list[SequenceOutput]) -> None:
        with changed:
            heard.extend(said)
            changed.notify_all()

    rng, config = random.Random(1), emulated_config(QUICK)
    made, _ = emulated_engine(QUICK, config, clock=monotonic, sink=hear, ids=count(1), rng=rng)
    yield made, heard, changed
    made.stop()


def test_an_engines_log_gives_its_profile(
    tmp_path: Path, engine: tuple[Engine, list[SequenceOutput], threading.Condition]
) -> None:
    made, heard, changed = engine
    path = tmp_path / "steps.jsonl"
    log = StepLog(path, header_of(made, "quick-model", QUICK.bytes_per_token, emulated="quick"), monotonic())
    made.report_steps_to(log.take)
    made.start()
    for number in range(1, 25):
        made.submit(EngineRequest(sequence(number, range(number, number + 20 * number), max_output=30)))
    with changed:
        assert changed.wait_for(lambda: sum(said.finish is not None for said in heard) == 24, timeout=15)
    made.stop()
    log.close()
    back = list(read(path))
    assert sum(line.shape.prefill for line in back) == made.batcher.counts.prefilled
    assert sum(line.shape.decodes for line in back) == made.batcher.counts.generated - 24
    assert all(0 < line.run_s <= line.took_s for line in back)
    assert [line.at for line in back] == sorted(line.at for line in back)

    profile = fitted(path, "again")
    assert (profile.name, profile.model) == ("again", "quick-model")
    assert (profile.slots, profile.context, profile.kv_tokens) == (QUICK.slots, QUICK.context, QUICK.kv_tokens)
    assert profile.step_tokens == QUICK.step_tokens
    dump(profile, tmp_path / "profile.json")
    assert load(tmp_path / "profile.json") == profile


# -- profiles in files -----------------------------------------------------------------------------------------------


def test_a_profile_is_the_same_from_its_file(tmp_path: Path) -> None:
    noisy = replace(QUICK, with_prefill=Residuals(1.0, ((0.9, 1.2), (1.0, 1.1))), load_bytes_per_s=None)
    dump(noisy, tmp_path / "noisy.json")
    assert find(str(tmp_path / "noisy.json")) == noisy
    assert find("h100-llama3-8b") is PROFILES["h100-llama3-8b"]


def test_a_profile_that_is_none_says_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"no profile 'h1000': choose a100-llama3-8b, h100-llama3-8b, h200"):
        find("h1000")
    with pytest.raises(StartupError, match=r"can't read the profile .*No such file"):
        find(str(tmp_path / "none.json"))
    with pytest.raises(StartupError, match="can't write the profile"):
        dump(QUICK, tmp_path / "none" / "there.json")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda text: text[:-20], "is not a profile"),
        (lambda text: text.replace('"slots": 8', '"slots": 0'), "slots"),
        (lambda text: text.replace('"slots": 8', '"slots": "many"'), "slots"),
        (lambda text: text.replace('"version": 1', '"version": 2'), "version 2"),
        (lambda text: text.replace('"version": 1', '"version": 1, "more": 1'), "more"),
    ],
)
def test_a_broken_profile_is_refused(tmp_path: Path, change: Callable[[str], str], named: str) -> None:
    path = tmp_path / "profile.json"
    dump(QUICK, path)
    before = path.read_text()
    path.write_text(change(before))
    assert path.read_text() != before
    with pytest.raises(StartupError, match=named):
        load(path)


def test_a_log_too_short_to_fit_says_so(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    log = StepLog(path, StepLogHeader(profile={"name": "a", "model": "a"}), 0.0)
    log.take(step(), 1.0, 0.02, 0.015)
    log.close()
    with pytest.raises(StartupError, match="too few"):
        fitted(path, "a")
    path.write_text('{"headgate":"step log","profile":{"slots":"x"}}\n')
    with pytest.raises(StartupError, match="line 1"):
        fitted(path, "a")
