"""The rows of files and batches: cut off at any point, and on a disk that is full."""

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.batches.jobs import Jobs, MissingInput, Result
from headgate.batches.shelf import DAY_S, STRAY_S, InUse, Shelf
from headgate.batches.store import BatchStore, StorageTrouble, troubled
from headgate.config.batches import BatchesConfig
from tests.batches.site import CHAT, jsonl, line

CONFIG = BatchesConfig(lines=5000, keep_days=1)
NOW = 1_000_000.0


class Books:
    def __init__(self, folder: Path) -> None:
        self.store = BatchStore(folder)
        self.store.open()
        self.shelf = Shelf(self.store, CONFIG)
        self.jobs = Jobs(self.store, CONFIG)

    def file(self, content: bytes, file_id: str = "file-1", tenant: str = "acme") -> None:
        self.store.write_part(file_id, iter([content]))
        self.shelf.add(file_id, tenant, "in.jsonl", len(content), NOW)

    def row(self) -> dict[str, object]:
        [row], _ = self.jobs.page(None, None, 1)
        return row

    def begin(self, lines: int) -> dict[str, object]:
        self.file(jsonl([line(n) for n in range(lines)]))
        self.jobs.create("acme", CHAT, "24h", "file-1", None, NOW)
        self.go(self.jobs.validating(self.row(), lambda: NOW))
        return self.row()

    def go(self, steps: Iterator[None], most: int = 1 << 30) -> None:
        for number, _ in enumerate(steps):
            if number >= most:
                return

    def content(self, file_id: object) -> list[dict[str, object]]:
        return [json.loads(one) for one in self.store.path(str(file_id)).read_bytes().splitlines()]


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    made = Books(tmp_path / "b")
    yield made
    made.store.close()


def done(number: int, *, good: bool = True) -> Result:
    return Result(number, good, json.dumps({"n": number}).encode(), (5, 1, 2))


def test_a_validation_that_is_cut_off_begins_anew(books: Books) -> None:
    books.file(jsonl([line(n) for n in range(1700)]))
    books.jobs.create("acme", CHAT, "24h", "file-1", {"a": "b"}, NOW)
    for most in (0, 1, 2):
        steps = books.jobs.validating(books.row(), lambda: NOW)
        books.go(steps, most)
        assert books.row()["status"] == "validating"
    books.go(books.jobs.validating(books.row(), lambda: NOW))
    row = books.row()
    assert (row["status"], row["total"], row["failed"], row["model"]) == ("in_progress", 1700, 0, "double")
    assert len(books.jobs.waiting(row, 0, 5000, 1 << 40)) == 1700


def test_a_line_keeps_its_first_result(books: Books) -> None:
    row = books.begin(3)
    seq = int(str(row["seq"]))
    books.jobs.record([(seq, done(2)), (seq, done(2, good=False))])
    books.jobs.record([(seq, done(2, good=False))])
    row = books.row()
    assert (row["completed"], row["failed"], row["input_tokens"], row["output_tokens"]) == (1, 0, 5, 2)
    assert [one.number for one in books.jobs.waiting(row, 0, 10, 1 << 40)] == [1, 3]
    assert books.jobs.line(row, 2) == []
    assert [one.number for one in books.jobs.line(row, 3)] == [3]


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_a_finish_that_is_cut_off_gives_the_same_files(books: Books, cut: int) -> None:
    row = books.begin(5)
    seq = int(str(row["seq"]))
    books.jobs.record([(seq, done(1)), (seq, done(4, good=False))])
    books.go(books.jobs.finishing(row, "expired", lambda: NOW), cut)
    if books.row()["status"] == "finalizing":
        assert books.row()["expired_at"] is not None
        books.go(books.jobs.finishing(books.row(), "expired", lambda: NOW))
    row = books.row()
    assert row["status"] == "expired"
    assert books.content(row["output_file_id"]) == [{"n": 1}]
    assert [one.get("n") for one in books.content(row["error_file_id"])] == [None, None, 4, None]
    assert (row["total"], row["completed"], row["failed"]) == (5, 1, 4)
    names = {path.name for path in books.store.files.iterdir()}
    assert names == {"file-1", row["output_file_id"], row["error_file_id"]}
    assert not books.jobs.unfinished(seq)


def test_lines_are_read_a_few_at_a_time_and_at_least_one(books: Books) -> None:
    row = books.begin(10)
    assert [one.number for one in books.jobs.waiting(row, 0, 3, 1 << 40)] == [1, 2, 3]
    assert [one.number for one in books.jobs.waiting(row, 3, 3, 1)] == [4]
    assert books.jobs.waiting(row, 10, 3, 1) == []


def test_attempts_outlive_a_restart(books: Books) -> None:
    row = books.begin(2)
    books.jobs.attempted([(int(str(row["seq"])), 2, 5)])
    assert [one.attempts for one in books.jobs.waiting(row, 0, 9, 1 << 40)] == [0, 5]


def test_an_input_that_is_gone_is_told_and_ends_the_lines(books: Books) -> None:
    row = books.begin(3)
    books.jobs.record([(int(str(row["seq"])), done(1))])
    books.store.path("file-1").unlink()
    with pytest.raises(MissingInput, match="not there any more") as missing:
        books.jobs.waiting(row, 0, 9, 1 << 40)
    books.jobs.give_up(row, missing.value)
    books.go(books.jobs.finishing(books.row(), "completed", lambda: NOW))
    row = books.row()
    assert (row["completed"], row["failed"]) == (1, 2)
    assert {str(one["error"]["code"]) for one in books.content(row["error_file_id"])} == {"input_file_missing"}  # type: ignore[index]
    books.jobs.create("acme", CHAT, "24h", "file-1", None, NOW)
    books.go(books.jobs.validating(books.row(), lambda: NOW))
    assert books.row()["status"] == "failed"


def test_a_batch_that_is_cancelled_while_it_is_validated_stays_cancelled(books: Books) -> None:
    books.file(jsonl([line(n) for n in range(1200)]))
    batch = books.jobs.create("acme", CHAT, "24h", "file-1", None, NOW)
    steps = books.jobs.validating(books.row(), lambda: NOW)
    next(steps)
    books.jobs.cancel("acme", batch["id"], NOW)
    books.go(steps)
    assert books.row()["status"] == "cancelling"
    books.go(books.jobs.finishing(books.row(), "cancelled", lambda: NOW))
    assert (books.row()["status"], books.row()["failed"]) == ("cancelled", 1200)


def test_what_has_expired_is_removed_and_what_is_used_is_not(books: Books) -> None:
    books.begin(2)
    books.file(b"x", "file-2")
    stray = books.store.path("file-stray.part")
    stray.write_bytes(b"x")
    os.utime(stray, (NOW - STRAY_S, NOW - STRAY_S))
    later = NOW + 2 * DAY_S
    with pytest.raises(InUse):
        books.shelf.delete("acme", "file-1")
    books.shelf.sweep(later)
    assert {path.name for path in books.store.files.iterdir()} == {"file-1"}
    books.jobs.cancel("acme", str(books.row()["id"]), NOW)
    books.go(books.jobs.finishing(books.row(), "cancelled", lambda: NOW))
    books.shelf.sweep(later)
    assert [*books.store.files.iterdir()] == []
    assert books.jobs.page(None, None, 5) == ([], False)


# -- disks ------------------------------------------------------------------------------------------------------


def test_a_full_database_takes_nothing_and_loses_nothing(books: Books) -> None:
    row = books.begin(50)
    seq = int(str(row["seq"]))
    books.jobs.record([(seq, done(1))])
    with books.store.reading() as database:
        pages = database.execute("PRAGMA page_count").fetchone()["page_count"]
        database.execute(f"PRAGMA max_page_count = {pages}")
    big = Result(2, True, b"x" * 1_000_000)
    with pytest.raises(StorageTrouble, match="no space is left"):
        books.jobs.record([(seq, done(3)), (seq, big)])
    assert books.row()["completed"] == 1
    with books.store.reading() as database:
        database.execute(f"PRAGMA max_page_count = {pages * 1000}")
    books.jobs.record([(seq, done(3)), (seq, big)])
    assert books.row()["completed"] == 3


def test_a_full_disk_is_told_for_files(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    row = books.begin(2)
    books.jobs.record([(int(str(row["seq"])), done(1))])
    monkeypatch.setattr(BatchStore, "part", lambda self, file_id: Path("/dev/full"))
    with pytest.raises(StorageTrouble, match="no space is left in the folder of batches"):
        books.go(books.jobs.finishing(row, "expired", lambda: NOW))
    monkeypatch.undo()
    books.go(books.jobs.finishing(books.row(), "expired", lambda: NOW))
    assert books.row()["status"] == "expired"


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.ENOSPC, "no space"),
        (errno.EROFS, "make it writable"),
        (errno.EACCES, "make it writable"),
        (errno.EIO, "can't be used"),
    ],
)
def test_what_is_wrong_with_a_disk_is_told(tmp_path: Path, number: int, told: str) -> None:
    with pytest.raises(StorageTrouble, match=told), troubled(tmp_path):
        raise OSError(number, os.strerror(number))


def test_a_folder_of_another_version_is_not_touched(tmp_path: Path) -> None:
    books = Books(tmp_path)
    with books.store.writing() as database:
        database.execute("PRAGMA user_version = 99")
    books.store.close()
    with pytest.raises(StorageTrouble, match="format 99"):
        BatchStore(tmp_path).open()


def test_one_of_two_runs_the_batches(tmp_path: Path) -> None:
    first, second = Books(tmp_path), Books(tmp_path)
    assert first.store.lock()
    assert first.store.lock()
    assert not second.store.lock()
    first.store.close()
    assert second.store.lock()
    second.store.close()
