"""The table of a relay's phases is total, and docs/request.md draws it."""

from pathlib import Path

from headgate.gateway.answer.phases import ASKED, END, NEVER, NEXT, OVER, PHASES, STEPS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "request.md"


def test_the_table_has_every_step_in_every_phase() -> None:
    assert len(NEXT) == len(STEPS)
    assert {len(row) for row in NEXT} == {len(PHASES)}
    assert {phase for row in NEXT for phase in row} <= {NEVER, *range(len(PHASES))}


def test_an_answer_can_end_in_every_phase_and_only_once() -> None:
    assert NEXT[END] == (OVER,) * OVER + (NEVER,)
    assert {row[OVER] for row in NEXT} == {NEVER}


def test_every_phase_can_be_reached() -> None:
    reached, fresh = {ASKED}, {ASKED}
    while fresh:
        fresh = {row[phase] for row in NEXT for phase in fresh} - reached - {NEVER}
        reached |= fresh
    assert reached == set(range(len(PHASES)))


def test_the_page_draws_the_table() -> None:
    drawn = [
        f"    {PHASES[phase]} --> {PHASES[then]}: {STEPS[step]}"
        for phase in range(len(PHASES))
        for step, row in enumerate(NEXT)
        if (then := row[phase]) not in (NEVER, phase)
    ]
    assert "    [*] --> ASKED\n" + "\n".join(drawn) + "\n    OVER --> [*]\n" in PAGE.read_text(encoding="utf-8")
