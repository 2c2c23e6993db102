"""What a line of an input file asks for, or what is wrong with it."""

import json
from typing import Any

import pytest

from headgate.batches.again import FAILS, WAITS, after, pause_s
from headgate.batches.forms.formats import answered_line, failed_line, tokens_of
from headgate.batches.forms.lines import MOST_LINE_BYTES, InputLine, LineSplitter, body_of, read_line
from headgate.model.outcome import Outcome
from tests.batches.site import CHAT, line


def read(told: Any, seen: set[str] | None = None) -> InputLine:
    data = told if isinstance(told, bytes) else json.dumps(told).encode()
    return read_line(data, 7, 100, CHAT, set() if seen is None else seen)


def test_a_good_line() -> None:
    found = read(line(1, model="m"))
    assert (found.number, found.begin, found.custom_id, found.model, found.flaw) == (7, 100, "line-1", "m", "")


@pytest.mark.parametrize(
    ("told", "flaw"),
    [
        (b"{", "no JSON object"),
        (b"[1]", "no JSON object"),
        (b'{"custom_id": "\xff"}', "no JSON object"),
        ({**line(1), "custom_id": 7}, "custom_id must be"),
        ({**line(1), "custom_id": ""}, "custom_id must be"),
        ({**line(1), "method": "GET"}, "method must be"),
        ({**line(1), "url": "/v1/embeddings"}, "url must be"),
        ({**line(1), "body": [1]}, "body must be an object"),
        ({"custom_id": "a", "method": "POST", "url": CHAT}, "body must be an object"),
        (line(1, stream=True), "not streamed"),
        (b" " * (MOST_LINE_BYTES + 1), "longer than"),
    ],
)
def test_what_is_wrong_with_a_line_is_named(told: Any, flaw: str) -> None:
    assert flaw in read(told).flaw


def test_a_second_line_with_the_same_id_is_wrong() -> None:
    seen: set[str] = set()
    assert read(line(1), seen).flaw == ""
    assert "earlier line" in read(line(1), seen).flaw


def test_the_body_of_a_line_is_taken_as_it_is() -> None:
    assert body_of(b'{"body": {"a" : 1.0}, "custom_id": "x"}') == b'{"a" : 1.0}'
    for changed in (b"{}", b"no"):
        with pytest.raises(ValueError, match=r".*"):
            body_of(changed)


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_a_file_is_cut_into_lines_whatever_pieces_it_comes_in(size: int) -> None:
    data = b"one\n\n  \ntwo two\r\nthree"
    splitter, found = LineSplitter(), list[tuple[int, int, bytes]]()
    for at in range(0, len(data), size):
        found += splitter.feed(data[at : at + size])
    found += splitter.feed(b"", last=True)
    assert [(number, text) for number, _, text in found] == [(1, b"one"), (4, b"two two\r"), (5, b"three")]
    assert all(data[begin : begin + len(text)] == text for _, begin, text in found)


def test_a_line_without_an_end_does_not_fill_the_memory() -> None:
    splitter, piece = LineSplitter(), b"x" * (1 << 20)
    for _ in range(20):
        assert list(splitter.feed(piece)) == []
        assert len(splitter._held) <= MOST_LINE_BYTES + 1
    found = list(splitter.feed(b"\nnext\n"))
    assert [(number, len(text)) for number, _, text in found] == [(1, MOST_LINE_BYTES + 1), (2, 4)]
    assert found[1][1] == 20 * (1 << 20) + 1


# -- what becomes of a line -------------------------------------------------------------------------------------


def test_an_answer_is_a_result_and_so_is_an_error_that_no_attempt_would_better() -> None:
    for outcome in (None, Outcome.INVALID, Outcome.TOO_LONG, Outcome.OUT_OF_TIME, Outcome.UNAUTHORIZED):
        assert after(outcome, 1, 8, None).what == "over"


def test_a_refusal_is_no_attempt() -> None:
    for outcome in WAITS:
        assert after(outcome, 99, 8, 7.0) == ("wait", 7.0)
    assert after(Outcome.NO_REPLICA, 1, 8, None) == ("wait", 1.0)


def test_a_failure_is_tried_again_with_growing_pauses_and_then_told() -> None:
    for outcome in FAILS:
        assert [after(outcome, number, 4, 1.0) for number in (1, 2, 3, 4)] == [
            ("again", 1.0), ("again", 4.0), ("again", 16.0), ("over", 0.0),
        ]  # fmt: skip
    assert after(Outcome.UNKNOWN_MODEL, 4, 8, None).what == "again"
    assert after(Outcome.UNKNOWN_MODEL, 5, 8, None).what == "over"
    assert [pause_s(attempts) for attempts in (5, 6, 1000)] == [256.0, 600.0, 600.0]


# -- results ----------------------------------------------------------------------------------------------------


def test_an_answer_becomes_one_line() -> None:
    told = json.loads(answered_line("batch_ab", 3, "x\ny", 200, b'{"a":\n"b\\nc"}'))
    assert b"\n" not in answered_line("batch_ab", 3, "x\ny", 200, b'{"a":\n"b\\nc"}')
    assert told["response"] == {"status_code": 200, "request_id": "batch_ab-3", "body": {"a": "b\nc"}}
    assert (told["id"], told["custom_id"], told["error"]) == ("batch_req_ab_3", "x\ny", None)


@pytest.mark.parametrize("body", [b"oops", b"", b'{"a":', b'"\xff"'])
def test_an_answer_that_is_no_json_becomes_text(body: bytes) -> None:
    assert isinstance(json.loads(answered_line("batch_ab", 3, None, 500, body))["response"]["body"], str)


def test_a_line_that_was_never_answered_says_why() -> None:
    told = json.loads(failed_line("batch_ab", 3, None, "invalid_line", "line 3: no", "body"))
    assert told["error"] == {"code": "invalid_line", "message": "line 3: no", "line": 3, "param": "body"}
    assert told["response"] is None


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (b'{"usage":{"prompt_tokens":5,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}', (5, 4, 2)),
        (b'{"usage":{"input_tokens":5,"output_tokens":2}}', (5, 0, 2)),
        (b'{"usage":{"prompt_tokens":-5,"total_tokens":2}}', (0, 0, 0)),
        (b'{"usage":{"prompt_tokens":"5"}}', (0, 0, 0)),
        (b"{}", (0, 0, 0)),
    ],
)
def test_the_tokens_of_an_answer(body: bytes, tokens: tuple[int, int, int]) -> None:
    assert tokens_of(body) == tokens
