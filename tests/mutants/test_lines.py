"""What a mutant changes, what is left alone, and that a draw stays the same while other lines change."""

from pathlib import Path

from tests.mutants.lines import draw, mutants_of

SOURCE = '''"""Says 1 < 2."""

LIMIT = 5
"""More than 4."""


def wait(now: float, most: int = 3) -> float | None:
    """Not 0."""
    log.info("waits %d", 1)
    assert now >= 0
    if now < LIMIT and not done:
        raise ValueError(f"{now + 1} is late")
    count += 1
    queue.pop()
    return max(now, 2 * most)
'''
BECOMES = {
    "if now <= LIMIT and not done:",
    "if now < LIMIT or not done:",
    "if now < LIMIT and done:",
    "pass",
    "count += 2",
    "return min(now, 2 * most)",
    "return max(now, 3 * most)",
    "return max(now, 2 / most)",
}


def test_logic_is_changed_and_texts_settings_logs_and_assertions_are_not() -> None:
    found = mutants_of("m.py", SOURCE)
    assert {one.after.strip() for one in found} == BECOMES
    assert len(found) == len(BECOMES) + 1, "two statements are dropped"
    for one in found:
        changed = one.applied(SOURCE).splitlines()
        assert [at for at, (old, new) in enumerate(zip(SOURCE.splitlines(), changed, strict=True)) if old != new] == [
            one.line - 1
        ]


def test_lines_that_are_the_same_are_two_mutants() -> None:
    found = mutants_of("m.py", "def f() -> None:\n    g()\n    g()\n")
    assert len({one.id for one in found}) == 2


def test_a_draw_stays_the_same_while_lines_move(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(SOURCE)
    before = draw(mutants_of("m.py", SOURCE), tmp_path, 7, 4)
    moved = SOURCE.replace("def wait", "# A comment.\n\n\ndef wait")
    (tmp_path / "m.py").write_text(moved)
    after = draw(mutants_of("m.py", moved), tmp_path, 7, 4)
    assert [one.id for one in before] == [one.id for one in after]
    assert [one.line + 3 for one in before] == [one.line for one in after]
    assert [one.id for one in before] != [one.id for one in draw(mutants_of("m.py", moved), tmp_path, 8, 4)]
