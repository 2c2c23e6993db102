"""The file of all requests: what is in it, and what happens when it can't be written."""

import asyncio
import json
import logging
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headgate import __version__
from headgate.model.errors import StartupError
from headgate.model.outcome import Outcome
from headgate.model.record import Ahead, Attempt, ConsideredReplica, EngineTimings, Gap, Record
from headgate.publish import journal as module
from headgate.publish.journal import Journal, JournalError, JournalLine, read

MIB = 1 << 20


def record(number: int, **more: Any) -> Record:
    about: dict[str, Any] = {"lane": "fast", "tenant": "a", "model": "m", "outcome": Outcome.COMPLETED}
    return Record(id=f"r{number}", at=float(number), wall=1.7e9 + number, **about, **more)


FULL = record(
    7,
    replica="one:8000",
    failed=(Attempt("two:8000", 0.1, 0.2, Outcome.REPLICA_FAILED, False, "cut off"),),
    gaps=(Gap(1.0, 0.25),),
    engine=EngineTimings(queue_ms=1.5, prefill_ms=20.0),
    ahead=Ahead(3, 1000, "b", 2, 800),
    seen=(ConsideredReplica("one:8000", 0.5, 1.0, 0.0, False),),
    ttft_s=0.5,
    trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    parent="00f067aa0ba902b7",
)


@contextmanager
def writing(path: Path, rotate_bytes: int = MIB, files: int = 4, prompts: bool = False) -> Iterator[Journal]:
    journal = Journal(path, rotate_bytes, files, prompts, now=lambda: 1234.5)
    try:
        yield journal
    finally:
        journal.close()


def eventually(true: Callable[[], bool]) -> None:
    ends = time.monotonic() + 10
    while not true():
        assert time.monotonic() < ends
        threading.Event().wait(0.001)


def ids(path: Path) -> list[str]:
    return [line.id for line in read(path)]


# -- what is in it --------------------------------------------------------------------------------------------


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with writing(path) as journal:
        journal.take([record(1), FULL], 0.0)
    header, *lines = path.read_text().splitlines()
    assert json.loads(header) == {"headgate": __version__, "schema": 1, "wall": 1234.5, "prompts": False}
    assert len(lines) == 2
    back = list(read(path))
    assert [msgspec.convert(msgspec.to_builtins(line), Record) for line in back] == [record(1), FULL]
    assert (journal.written, journal.dropped) == (2, 0)


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with writing(path):
        assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ({"messages": [{"role": "user", "content": "hello"}], "stream": True}, [{"role": "user", "content": "hello"}]),
        ({"prompt": "hello"}, "hello"),
        ({"input": ["a", "b"]}, ["a", "b"]),
    ],
)
def test_prompts_are_kept_only_when_asked_for(tmp_path: Path, body: dict[str, Any], kept: object) -> None:
    for prompts in (True, False):
        path = tmp_path / f"{prompts}.jsonl"
        with writing(path, prompts=prompts) as journal:
            journal.keep_prompt("r1", body)
            journal.take([record(1), record(2)], 0.0)
        assert [line.prompt for line in read(path)] == ([kept, None] if prompts else [None, None])
        assert ("hello" in path.read_text() or '"b"' in path.read_text()) == prompts


def test_prompts_that_wait_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PROMPT_BYTES", 100)
    with writing(tmp_path / "x", prompts=True) as journal:
        for number in range(5):
            journal.keep_prompt(f"r{number}", {"prompt": "x" * 38})
        assert journal.prompts_dropped == 3
        journal.keep_prompt("r1", {"prompt": "y" * 38})  # takes the other's place
        journal.take([record(0), record(1)], 0.0)
        eventually(lambda: journal.written == 2)
        journal.keep_prompt("r9", {"prompt": "x" * 38})  # there is room again
        assert journal.prompts_dropped == 3
    assert [line.prompt for line in read(tmp_path / "x")] == ["x" * 38, "y" * 38]


# -- rotation ---------------------------------------------------------------------------------------------------


def test_full_files_are_put_aside_and_the_oldest_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with writing(path, rotate_bytes=4096, files=3) as journal:
        for start in range(0, 200, 10):
            journal.take([record(number) for number in range(start, start + 10)], 0.0)
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["requests.jsonl", "requests.jsonl.1", "requests.jsonl.2"]
    files = [tmp_path / f"requests.jsonl{suffix}" for suffix in (".2", ".1", "")]
    assert all(file.stat().st_size <= 4096 for file in files)
    assert files[0].stat().st_size > 3900
    found = [name for file in files for name in ids(file)]
    assert found == [f"r{number}" for number in range(200 - len(found), 200)]
    assert journal.written == 200


def test_one_file_only_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with writing(path, rotate_bytes=4096, files=1) as journal:
        journal.take([record(number) for number in range(100)], 0.0)
    assert [file.name for file in tmp_path.iterdir()] == ["x"]
    assert ids(path)[-1] == "r99"
    assert path.stat().st_size <= 4096


def test_a_record_larger_than_a_file_is_written_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with writing(path, rotate_bytes=4096, files=4) as journal:
        journal.take([record(1, message="m" * 5000), record(2, message="m" * 5000), record(3)], 0.0)
    assert [ids(tmp_path / name) for name in ("x.2", "x.1", "x")] == [["r1"], ["r2"], ["r3"]]


def test_a_file_that_was_there_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for number in (1, 2):
        with writing(path) as journal:
            journal.take([record(number)], 0.0)
    assert ids(path) == ["r1", "r2"]
    assert path.read_text().count('"schema":1') == 2


def test_a_line_cut_off_when_its_writer_died_is_removed_before_going_on(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with writing(path) as journal:
        journal.take([record(1), record(2)], 0.0)
    path.write_bytes(path.read_bytes()[:-20])
    with writing(path) as journal:
        journal.take([record(3)], 0.0)
    assert ids(path) == ["r1", "r3"]


def test_a_file_moved_away_by_somebody_else_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with writing(path) as journal:
        journal.take([record(1)], 0.0)
        eventually(lambda: journal.written == 1)
        path.rename(tmp_path / "away")
        journal.take([record(2)], 0.0)
    assert (ids(tmp_path / "away"), ids(path)) == (["r1"], ["r2"])


# -- what can go wrong ------------------------------------------------------------------------------------------


def test_at_start_up_a_path_that_can_not_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("my diary\n")
    (tmp_path / "future").write_text('{"headgate":"9","schema":2}\n')
    os.mkfifo(tmp_path / "pipe")
    for name, why in (
        ("none/x", "No such file"),
        (".", "not a regular file"),
        ("pipe", "not a regular file"),
        ("other.txt", "something else"),
        ("future", "another version"),
    ):
        with pytest.raises(StartupError, match=f"record.path: .*{why}.*choose another path"):
            Journal(tmp_path / name, MIB, 4, False)
    assert (tmp_path / "other.txt").read_text() == "my diary\n"


def test_two_processes_do_not_write_one_file(tmp_path: Path) -> None:
    with writing(tmp_path / "x"), pytest.raises(StartupError, match="another process is writing it"):
        Journal(tmp_path / "x", MIB, 4, False)
    with writing(tmp_path / "x"):
        pass  # once the first is done


@contextmanager
def disk_with_room_for(size: int) -> Iterator[None]:
    """The kernel refuses to make any file longer, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_costs_records_and_one_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "x"
    with caplog.at_level(logging.WARNING), writing(path) as journal:
        with disk_with_room_for(2000):
            for number in range(40):
                journal.take([record(number)], 0.0)
                eventually(lambda: journal.written + journal.dropped == number + 1)  # noqa: B023
        lost = journal.dropped
        assert 0 < lost < 40
        assert [entry.levelname for entry in caplog.records] == ["ERROR"]
        assert str(path) in caplog.text
        assert path.stat().st_size <= 2000
        journal.take([record(100)], 0.0)
        eventually(lambda: journal.written == 41 - lost)
    assert caplog.records[-1].getMessage() == f"{path} can be written again; {lost} records were lost"
    assert ids(path) == [f"r{number}" for number in range(40 - lost)] + ["r100"]


def test_what_was_written_only_in_part_counts_as_lost_and_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with writing(path) as journal:
        with disk_with_room_for(2000):
            journal.take([record(number) for number in range(40)], 0.0)
            eventually(lambda: journal.written + journal.dropped == 40)
        assert len(ids(path)) == journal.written


def test_a_file_that_could_not_even_be_begun_is_begun_later(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with writing(path) as journal:
        path.rename(tmp_path / "away")
        with disk_with_room_for(10):
            journal.take([record(1)], 0.0)
            eventually(lambda: journal.dropped == 1)
        journal.take([record(2)], 0.0)
    assert ids(path) == ["r2"]


def test_a_folder_that_is_gone_costs_records_until_it_is_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with writing(folder / "x") as journal:
        (folder / "x").unlink()
        folder.rmdir()
        journal.take([record(1)], 0.0)
        journal.take([record(2)], 0.0)
        eventually(lambda: journal.dropped == 2)
        assert len(caplog.records) == 1
        folder.mkdir()
        journal.take([record(3)], 0.0)
    assert ids(folder / "x") == ["r3"]


def test_a_disk_that_hangs_holds_nobody_up_and_what_waits_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 100)
    hangs, reached = threading.Event(), threading.Event()
    write = os.write

    def slow(fd: int, data: bytes) -> int:
        if threading.current_thread().name == "journal":
            reached.set()
            hangs.wait(10)
        return write(fd, data)

    with writing(tmp_path / "x") as journal:
        monkeypatch.setattr(os, "write", slow)
        journal.take([record(0)], 0.0)
        assert reached.wait(10)

        async def serve() -> None:
            async with asyncio.timeout(5):
                for number in range(1, 300):
                    journal.take([record(number)], 0.0)
                    await asyncio.sleep(0)

        asyncio.run(serve())
        assert journal.dropped == 199
        journal.close(0.01)  # in vain
        hangs.set()
    assert ids(tmp_path / "x") == [f"r{number}" for number in range(101)]


# -- reading ----------------------------------------------------------------------------------------------------


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with writing(path) as journal:
        journal.take([record(1), record(2)], 0.0)
    whole = path.read_bytes()
    for cut in (whole[:-1], whole[:-30], whole[: whole.index(b"\n") + 3]):
        path.write_bytes(cut)
        assert ids(path) in (["r1"], [])
    path.write_bytes(whole[:10])
    assert ids(path) == []


def test_what_can_not_be_read_says_why(tmp_path: Path) -> None:
    path = tmp_path / "x"
    header = '{"headgate":"0.1","schema":1}\n'
    for text, why in (
        ('{"headgate":"9.9","schema":2}\n', "Headgate 9.9 in schema 2, and this one .* reads 1"),
        ("hello\n", "no file of records"),
        (header + "hello\n", "line 2: no record"),
        (header + '{"id":"x"}\n', "line 2: no record: .*missing required field"),
        (header + '{"headgate":"9.9","schema":2}\n', "line 2: .*schema 2"),
        ('{"headgate":1}\n', "line 1: no header"),
    ):
        path.write_text(text)
        with pytest.raises(JournalError, match=why):
            list(read(path))
    with pytest.raises(JournalError, match="can't be read: No such file"):
        list(read(tmp_path / "none"))


def test_fields_of_a_later_version_are_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "x"
    line = msgspec.json.encode(record(1))[:-1] + b',"colour":"blue"}\n'
    path.write_bytes(b'{"headgate":"0.9","schema":1,"mood":"good"}\n' + line)
    assert [type(found) for found in read(path)] == [JournalLine]
