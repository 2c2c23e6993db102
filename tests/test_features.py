"""docs/features.md says of each requirement what was asked, and what does and proves it, or that it is not done."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "features.md").read_text()
PARTS = dict(re.findall(r"^### ([A-P]\d+)\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL))
MOST = {"A": 10, "B": 6, "C": 4, "D": 3, "E": 5, "F": 3, "G": 4, "H": 4, "I": 5, "J": 4, "K": 4}
MOST |= {"L": 7, "M": 4, "N": 3, "O": 5, "P": 3}


def test_every_requirement_is_there() -> None:
    assert list(PARTS) == [f"{letter}{number}" for letter, most in MOST.items() for number in range(1, most + 1)]


@pytest.mark.parametrize("name", PARTS)
def test_it_is_quoted_and_done_with_a_proof_or_said_not_to_be(name: str) -> None:
    part = PARTS[name]
    assert re.search(r"^> \S", part, re.MULTILINE), "what was asked is not quoted"
    proved = "Proved by `" in part
    assert proved or "*Not done:*" in part, "neither a proof nor *not done*"
    assert proved == ("Done in `" in part)


def test_what_is_named_is_there() -> None:
    named = set(re.findall(r"`((?:tests|benchmarks)/[\w/.]*|\w+/[\w/]*(?:\.py)?|docs/[\w/.-]+)`", TEXT))
    assert len(named) > 150
    places = (ROOT, ROOT / "src" / "headgate")
    assert sorted(path for path in named if not any((place / path).exists() for place in places)) == []
