"""The soak's own bookkeeping notices what is wrong. benchmarks/soak.py is the run itself."""

import json
from pathlib import Path

import pytest
from benchmarks.soak_book import CUT, DONE, FAILED, LEFT, Book, End, Tail
from benchmarks.soak_memory import Seen

ANY: frozenset[int] = frozenset()


def line(number: int, outcome: str = "completed", status: int = 200) -> dict[str, object]:
    return {"id": f"soak-{number}", "outcome": outcome, "status": status}


def test_one_record_and_one_answer_for_each_request_is_all_well() -> None:
    book = Book()
    first, second = book.begin("chat"), book.begin("chat")
    book.record(line(first))
    book.end(first, "chat", End(DONE, 200), ANY)
    book.end(second, "chat", End(FAILED, 503), ANY)
    book.record(line(second, "lane_full", 503))
    assert (book.without_record, book.unanswered, book.twice, book.foreign, book.contradicted) == (0, 0, 0, 0, 0)
    assert not book.told()


def test_a_missing_record_a_second_one_and_a_strangers_are_counted() -> None:
    book = Book()
    first, second = book.begin("chat"), book.begin("chat")
    book.record(line(first))
    book.record(line(first))
    book.record(line(99))
    book.end(second, "chat", End(DONE, 200), ANY)
    assert (book.without_record, book.twice, book.foreign) == (1, 1, 1)
    assert book.missing() == ["soak-1 (chat)"]


def test_what_is_no_request_must_have_no_record() -> None:
    book = Book()
    number = book.begin("no such path", counted=False)
    book.end(number, "no such path", End(FAILED, 404), frozenset({404}))
    assert (book.counted, book.without_record, book.contradicted) == (0, 0, 0)
    book.record(line(number, "invalid", 404))
    assert book.twice == 1


@pytest.mark.parametrize(
    ("end", "outcome", "status", "agrees"),
    [
        (End(DONE, 200), "completed", 200, True),
        (End(DONE, 200), "time_cap", 200, True),
        (End(DONE, 200), "replica_failed", 200, False),
        (End(FAILED, 200), "replica_failed", 200, True),
        (End(FAILED, 502), "replica_failed", 200, True),
        (End(FAILED, 200), "completed", 200, False),
        (End(FAILED, 503), "over_limit", 429, False),
        (End(LEFT, 0), "cancelled", 499, True),
        (End(LEFT, 200), "completed", 200, True),
    ],
)
@pytest.mark.parametrize("record_first", [False, True])
def test_what_the_client_saw_is_held_against_its_record(
    end: End, outcome: str, status: int, agrees: bool, record_first: bool
) -> None:
    book = Book()
    number = book.begin("chat")
    if record_first:
        book.record(line(number, outcome, status))
        book.end(number, "chat", end, ANY)
    else:
        book.end(number, "chat", end, ANY)
        book.record(line(number, outcome, status))
    assert book.contradicted == (not agrees)
    assert book.without_record == 0


def test_an_answer_that_was_cut_and_one_of_the_wrong_status_are_counted() -> None:
    book = Book()
    book.end(book.begin("chat"), "chat", End(CUT, 200), ANY)
    book.end(book.begin("bad body"), "bad body", End(DONE, 200), frozenset({400}))
    assert (book.unanswered, book.contradicted) == (1, 1)


def test_a_journal_is_followed_through_its_rotation(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_text('{"headgate": "0", "schema": 1}\n')
    tail = Tail(path)
    with path.open("a") as file:
        file.write(json.dumps(line(0)) + "\n" + '{"id": "soak-1",')
    assert [record["id"] for record in tail.records()] == ["soak-0"]
    with path.open("a") as file:
        file.write('"outcome": "completed"}\n')
    path.rename(tmp_path / "journal.1")
    path.write_text('{"headgate": "0", "schema": 1}\n' + json.dumps(line(2)) + "\n")
    assert [record["id"] for record in tail.records()] == ["soak-1", "soak-2"]
    assert tail.records() == []
    tail.close()


def test_growth_counts_from_the_middle_of_the_time_after_the_ring_was_full() -> None:
    at = [float(second) for second in range(101)]
    resident = [50 + 0.5 * min(second, 60) + 0.05 * max(0, second - 60) for second in range(101)]
    seen = Seen(0.0, at_s=at, resident_mb=resident, full_s=20.0)
    assert seen.half_s() == 60.0
    line_mb, medians_mb = seen.growth_mb(resident)
    assert line_mb == pytest.approx(2.0)
    assert medians_mb == pytest.approx(1.65, abs=0.1)
