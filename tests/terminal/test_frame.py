"""One frame of `headgate top`, drawn on terminals of all sizes."""

import io
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from headgate.cli.terminal.frame import TopView, clean, frame, help_page, paged, short, tail
from tests.terminal.states import idle, lane, replica, slow, state


def drawn(told: dict[str, Any], width: int = 80, height: int | None = 24, view: TopView | None = None) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height or 200, color_system=None)
    console.print(frame(told, width, height, view or TopView()))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_eighty_by_twenty_four_have_the_verdict_the_lanes_the_replicas_and_the_slowest() -> None:
    lines = drawn(state())
    assert len(lines) == 24
    assert max(map(len, lines)) <= 80
    assert lines[0] == "✓ All promises kept · 2 of 2 replicas · 0 refused"
    assert lines[1].startswith("Headgate 0.1.0 · up 3600 s · 16.5 requests/s · 900 tokens/s · answered 99.9")
    fast = lines[4].split()
    assert fast[:8] == ["fast", "✓", "ok", "8.25", "3", "12", "100ms", "300ms"]
    assert fast[8:11] == ["400ms", "12ms", "300ms"]
    assert lines[6].split()[:4] == ["long", "·", "idle", "0.00"]
    assert lines[9].startswith("replicas: 2")
    assert lines[10].split() == ["a", "up", "4/64", "4", "25%", "llama-3.1-8b"]
    assert lines[13].startswith("slowest")
    assert lines[14].startswith("request-0 ")
    assert lines[14].endswith("…")
    assert lines[-1].startswith("q quit")


@pytest.mark.parametrize("width", [40, 60, 76, 80, 120, 200])
@pytest.mark.parametrize("height", [10, 12, 15, 24, 50])
@pytest.mark.parametrize("many", [0, 1, 3, 60])
def test_a_frame_is_as_large_as_the_terminal(width: int, height: int, many: int) -> None:
    told = state(
        replicas=[replica(f"replica-{number}") for number in range(many)],
        slowest=[slow(f"request-{number}") for number in range(min(many, 12))],
    )
    lines = drawn(told, width, height)
    assert len(lines) == height
    assert max(map(len, lines)) <= width
    assert lines[-1].startswith("q quit")


def test_a_lanes_badge_says_in_words_what_is_wrong_where_there_is_room() -> None:
    bad = state(lanes=[lane("fast", state="critical", badge="TTFT p99 over its promise"), lane("slow", badge="ok")])
    assert drawn(bad, width=80)[4].split()[:3] == ["fast", "✗", "bad"]
    wide = drawn(bad, width=120)
    assert "✗ TTFT p99 over its promise" in wide[4]
    assert "✓ ok" in wide[5]


def test_with_many_replicas_those_that_are_down_come_first_and_the_others_are_counted() -> None:
    replicas = [replica(f"r{number}") for number in range(40)]
    replicas[30] = replica("r30", condition="down", state="ejected", why="connection refused")
    replicas[35] = replica("r35", condition="starting", state="warming")
    lines = drawn(state(replicas=replicas))
    assert "replicas: 40" in lines[9]
    assert lines[10].split()[:2] == ["r30", "ejected"]
    assert "connection refused" in lines[10]
    assert lines[11] == "and 39 more"
    tall = drawn(state(replicas=replicas), height=60)
    assert tall[11].split()[:2] == ["r35", "warming"]
    assert any(line.startswith("slowest") for line in tall)
    down = drawn(state(replicas=[replica(f"r{n}", condition="down", state="ejected") for n in range(40)]))
    assert down[11] == "and 39 more, 39 down"


def test_without_a_height_everything_is_there() -> None:
    told = state(replicas=[replica(f"r{number}") for number in range(100)])
    lines = drawn(told, height=None)
    assert sum(line.startswith("r") and "llama" in line for line in lines) == 100
    assert sum(line.startswith("request-") for line in lines) == 12
    assert not lines[-1].startswith("q quit")


def test_nothing_known_is_no_error() -> None:
    totals = {"requests_per_s": 0.0, "tokens_per_s": 0.0, "availability": None, "utilisation": None,
              "loop_lag_p99_s": None}  # fmt: skip
    told = state(lanes=[idle("fast")], replicas=[], slowest=[], totals=totals)
    lines = drawn(told)
    assert len(lines) == 24
    bare = replica("a", model="", kind=None, batch_size=None, kv_ratio=None)
    assert drawn(state(replicas=[bare]))[10].split() == ["a", "up", "4/64", "–", "–"]
    assert drawn(state(replicas=[bare | {"kind": "sglang"}]))[10].split()[-1] == "sglang"


def test_trouble_takes_the_verdicts_place_and_what_a_key_did_the_keys() -> None:
    lines = drawn(state(), view=TopView(trouble="no answer for 3.0 s: can't reach it", said="recorded"))
    assert lines[0] == "✗ no answer for 3.0 s: can't reach it"
    assert lines[-1] == "recorded"


def test_the_chosen_request_is_on_the_screen_however_far_down_it_is() -> None:
    for chosen in ("request-0", "request-11"):
        lines = drawn(state(), height=18, view=TopView(chosen=chosen))
        assert any(line.startswith(f"{chosen} ") for line in lines)


def test_what_others_wrote_does_not_steer_the_terminal() -> None:
    evil = "\x1b]0;mine\x07\x1b[2J\r\n"
    told = state(
        verdict={"level": "critical", "text": f"Down{evil}"},
        lanes=[lane(f"fast{evil}")],
        replicas=[replica(f"a{evil}", model=f"m{evil}"), replica("b", condition="down", why=f"why{evil}")],
        slowest=[slow(f"{evil}x", headline=f"because{evil}", lane=evil)],
    )
    text = "\n".join(drawn(told))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert len(text.splitlines()) == 24
    assert clean("Größe 1 → ✓") == "Größe 1 → ✓"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.0, "0.0ms"), (0.00994, "9.9ms"), (0.00996, "10ms"), (0.9994, "999ms"), (0.9996, "1.00s"), (9.99, "9.99s"),
     (9.996, "10.0s"), (99.96, "100s"), (1234.5, "1234s")],
)  # fmt: skip
def test_durations_are_short(value: float, expected: str) -> None:
    assert short(value) == expected


def test_an_id_keeps_its_end() -> None:
    assert tail("abc", 3) == "abc"
    assert tail("0123456789", 4) == "…789"


def test_something_long_is_shown_page_by_page_and_not_beyond_its_end() -> None:
    console = Console(file=io.StringIO(), width=40, height=10, color_system=None)
    long = Text("\n".join(f"line {number}" for number in range(30)))
    for asked, begins in ((0, 0), (25, 21), (-5, 0), (1000, 21)):
        page, begin = paged(console, long, 40, 9, asked)
        assert begin == begins
        with console.capture() as told:
            console.print(page)
        assert told.get().splitlines()[0].strip() == f"line {begins}"
    page, begin = paged(console, help_page(40), 40, 60, 3)
    assert begin == 0
