"""The answer in one sentence, before any table; and the command that made a report, without its secrets."""

import io

import pytest
from rich.console import Console

from headgate.report import html_page, table
from headgate.report.first import answered, command_line
from headgate.report.results import Results, Rows, Target
from headgate.report.summary import summarise
from tests.report.made import made


def result(ok: int, refused: int = 0, failed: int = 0, **given: object) -> Results:
    rows = Rows()
    for number in range(ok):
        rows.add(at_s=number * 0.1, lane="fast", ttft_s=0.2, tpot_s=0.02, e2e_s=1.0, output_tokens=40)
    for number in range(refused):
        rows.add(at_s=number * 0.1, lane="fast", kind="refused", why="503 lane_full", e2e_s=0.001)
    for number in range(failed):
        rows.add(at_s=number * 0.1, lane="fast", kind="failed", why="connection refused", e2e_s=0.001)
    return rows.results("made up", source="bench", duration_s=10.0, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ok", "refused", "failed", "said"),
    [
        (0, 0, 0, "No request was sent."),
        (100, 0, 0, "All 100 requests at 10.0/s were answered; TTFT p99 is 200 ms."),
        (1, 0, 0, "All 1 request at "),
        (90, 10, 0, "90.0 % of 100 requests at 11.1/s were answered, 10 refused; more than 1 % got none."),
        (97, 2, 1, "97.0 % of 100 requests at 10.3/s were answered, 2 refused, 1 failed; more than 1 % got none."),
        (0, 5, 20, "None of 25 requests at 12.6/s was answered, mostly because of connection refused."),
    ],
)
def test_what_came_of_a_load(ok: int, refused: int, failed: int, said: str) -> None:
    found = result(ok, refused, failed)
    sentence = answered(found, summarise(found)).replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert sentence.startswith(said)
    assert sentence.count(".") >= 1


def test_bounds_are_told_with_the_share_that_kept_them() -> None:
    found = result(100, goodput=[Target("ttft", 0.5), Target("tpot", 0.08, "fast")])
    sentence = answered(found, summarise(found)).replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert "were answered, 100 % within the bounds (TTFT ≤ 500 ms, fast TPOT ≤ 80.0 ms)" in sentence


def test_the_sentence_comes_before_the_tables_and_what_it_is_about_after_them() -> None:
    found = made(1)
    console = Console(file=io.StringIO(), width=80)
    table.show(found, summarise(found), console)
    out = console.file
    assert isinstance(out, io.StringIO)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "of 900 requests" in lines[0].replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert lines.index("made up") > 1


def test_a_page_says_it_first_and_with_which_command_it_was_made() -> None:
    page = html_page.render([made(1)], command="headgate bench --title 'a <b>'")
    body = page[page.index("<body>") :]
    assert body.index('class="first"') < body.index("<h2>")
    assert "<code>headgate bench --title &#39;a &lt;b&gt;&#39;</code>" in body
    two = html_page.render([made(1), made(2)], names=["before", "after"])
    assert two.count('class="first"') == 2
    assert '<p class="first">after: ' in two
    assert 'class="command"' not in two


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("/usr/bin/headgate", "bench", "--load", "a b"), "headgate bench --load 'a b'"),
        (("/x/headgate/__main__.py", "plan"), "headgate plan"),
        (("headgate", "bench", "--key", "sk-1", "--html", "x.html"), "headgate bench --key … --html x.html"),
        (("headgate", "bench", "--key=sk-1"), "headgate bench --key=…"),
        (("headgate", "bench", "--key", "a=sk-1", "b=sk=2", "--rate", "3"), "headgate bench --key a=… b=sk=… --rate 3"),
        (("headgate", "bench", "--key", "env:KEY", "--key=a=env:B"), "headgate bench --key env:KEY --key=a=env:B"),
        (("headgate", "doctor", "--api-key", "sk-1"), "headgate doctor --api-key …"),
        (("headgate", "bench", "http://me:pw@host/v1"), "headgate bench http://…@host/v1"),
        (("headgate", "bench", "--direct=https://pw@host"), "headgate bench --direct=https://…@host"),
        ((), ""),
    ],
)  # fmt: skip
def test_the_command_without_its_secrets(words: tuple[str, ...], shown: str) -> None:
    told = command_line(words)
    assert told.replace("'", "") == shown.replace("'", "") if "…" in shown else told == shown
