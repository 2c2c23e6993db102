"""Docstrings and documents are plain statements in the words of the field: no vague actors, no vague amounts."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [path for folder in ("src", "tests", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks" / "README.md"]
VAGUE = re.compile(r"\b(?:whoever|somebody|nobody|so\s+many|so\s+much|gone\s+on\s+with)\b", re.IGNORECASE)
QUOTED = re.compile(r"\"[^\"]{0,200}\"|“[^”]{0,200}”|`[^`]*`|^> .*$", re.MULTILINE)
"""Quotations and code, which may say anything."""


def _docstrings(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Line and text of each docstring, those of attributes included, and whether it is the module's."""
    for node in ast.walk(tree := ast.parse(path.read_text(encoding="utf-8"))):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                text = statement.value.value
                if isinstance(text, str):
                    yield statement.lineno, text, node is tree and statement is tree.body[0]


def _fault(text: str, module: bool) -> str | None:
    if found := VAGUE.search(QUOTED.sub("", text)):
        return found.group()
    if re.match(r"\s*Of\b", text):
        return "begins with Of"
    if module and re.match(r"[^.!?]*\?(?:\s|$)", QUOTED.sub("", text)):
        return "a question"
    return None


def test_docstrings_are_plain_statements() -> None:
    faults, seen = [], 0
    for path in SOURCES:
        for line, text, module in _docstrings(path):
            seen += 1
            if fault := _fault(text, module):
                faults.append(f"{path.relative_to(ROOT)}:{line}: {fault}")
    assert seen > 3000
    assert faults == []


def test_documents_name_the_actor_and_the_amount() -> None:
    faults = [
        f"{path.relative_to(ROOT)}: {found.group()}"
        for path in DOCUMENTS
        for found in VAGUE.finditer(QUOTED.sub("", path.read_text(encoding="utf-8")))
    ]
    assert faults == []


def test_each_fault_is_found_and_quotations_are_not() -> None:
    assert _fault("Whoever asks.", module=False) == "Whoever"
    assert _fault("Waits so\n    many seconds.", module=False) == "so\n    many"
    assert _fault("Of a stream.", module=False) == "begins with Of"
    assert _fault("Which replica? The best.", module=True) == "a question"
    assert _fault("Which replica? The best.", module=False) is None
    assert _fault('Says "nobody" to `whoever` asks.', module=True) is None
