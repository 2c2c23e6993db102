"""Log lines: one event is one line, whatever is in it, and no writer of a line ever waits."""

import io
import json
import logging
import os
import re
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.logs import FORMATTERS, LONGEST_MESSAGE, JsonLines, LogFormat, LogOptions, LogWriter, logging_to
from headgate.model.outcome import Outcome
from headgate.publish.turned_away import EVERY_S, RefusalLog

ANY = st.text(st.characters(exclude_categories=()), max_size=60)
"""Text with control characters and lone surrogates."""


def record(message: str, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("headgate.x", logging.INFO, "", 0, "%s", (message,), None)
    for name, value in extra.items():
        setattr(made, name, value)
    return made


@given(
    ANY, st.dictionaries(st.from_regex(r"[a-z]{1,8}_x", fullmatch=True), ANY | st.floats() | st.integers() | st.none())
)
def test_a_json_line_is_one_valid_object_whatever_is_in_it(message: str, extra: dict[str, Any]) -> None:
    line = JsonLines().format(record(message, **extra))
    assert len((line + "x").splitlines()) == 1
    told = json.loads(line, parse_constant=lambda name: pytest.fail(name))
    line.encode()
    assert told["level"] == "info"
    assert set(extra) <= set(told)


@given(ANY)
def test_a_text_line_is_one_line_whatever_is_in_it(message: str) -> None:
    line = FORMATTERS["text"]().format(record(message))
    assert len((line + "x").splitlines()) == 1
    line.encode()


def test_a_clients_text_can_not_pose_as_a_line() -> None:
    forged = "x\n2026-10-05 14:03:11.482 ERROR headgate.y: all is lost"
    try:
        raise ValueError(forged)
    except ValueError as error:
        made = record(forged)
        made.exc_info = (ValueError, error, error.__traceback__)
    lines = FORMATTERS["text"]().format(made).splitlines()
    assert [line for line in lines if re.match(r"\d{4}-", line)] == lines[:1]
    assert "ValueError" in json.loads(JsonLines().format(made))["exception"]


def test_what_is_given_can_not_replace_what_a_line_is() -> None:
    made = record("real", time="t", level="l", logger="g")
    made.message = "m"
    told = json.loads(JsonLines().format(made))
    assert (told["level"], told["logger"], told["message"]) == ("info", "headgate.x", "real")


def test_a_message_has_a_bound() -> None:
    for form in FORMATTERS.values():
        assert len(form().format(record("x" * 100_000))) < LONGEST_MESSAGE + 300


class Stuck(io.StringIO):
    """A terminal that takes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.entered = threading.Event()

    def write(self, text: str) -> int:
        self.entered.set()
        self.go.wait(10)
        return super().write(text)


def test_no_line_waits_for_a_slow_terminal_and_what_is_dropped_is_counted() -> None:
    stream = Stuck()
    writer = LogWriter(stream, most=10)
    writer.setFormatter(JsonLines())
    writer.emit(record("first"))
    assert stream.entered.wait(10)
    for number in range(25):
        writer.emit(record(f"line {number}"))
    assert writer.dropped == 15
    stream.go.set()
    writer.close()
    told = [json.loads(line)["message"] for line in stream.getvalue().splitlines()]
    assert told[:3] == ["first", "line 0", "line 1"]
    assert told[-1] == "15 log lines were dropped: they came too fast to be written"


def test_a_terminal_that_is_gone_harms_nobody() -> None:
    stream = io.StringIO()
    writer = LogWriter(stream)
    writer.setFormatter(JsonLines())
    stream.close()
    writer.emit(record("x"))
    writer.close()
    assert writer.dropped == 1


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_level_is_kept_and_told_to_engines_that_are_started(form: LogFormat) -> None:
    stream = io.StringIO()
    with logging_to(LogOptions(level="warning", format=form), stream):
        logging.getLogger("headgate.a").info("unseen")
        logging.getLogger("headgate.a").warning("seen")
        logging.getLogger("other").info("of a library")
        assert os.environ["HEADGATE_LOG_LEVEL"] == "warning"
        assert os.environ["HEADGATE_LOG_FORMAT"] == form
    assert "HEADGATE_LOG_LEVEL" not in os.environ
    assert stream.getvalue().count("\n") == 1
    assert "seen" in stream.getvalue()


# -- refusals ------------------------------------------------------------------------------------------------


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "headgate.publish.turned_away"]


def test_refusals_are_told_at_once_and_then_in_summaries(caplog: pytest.LogCaptureFixture) -> None:
    log, totals = RefusalLog(), dict.fromkeys(Outcome, 0)
    log.compare(totals, 0.0)
    assert told(caplog) == []
    for step in range(100):
        totals[Outcome.QUEUE_FULL] += 7
        totals[Outcome.COMPLETED] += 1
        totals[Outcome.CANCELLED] += 1
        log.compare(totals, 0.25 * step)
    assert told(caplog) == [
        "7 requests were not answered: 7 queue_full",
        f"{7 * 40} requests were not answered in the last {EVERY_S:.0f} s: {7 * 40} queue_full",
        f"{7 * 40} requests were not answered in the last {EVERY_S:.0f} s: {7 * 40} queue_full",
    ]
