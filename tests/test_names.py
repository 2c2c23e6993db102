"""The tree keeps the rules that a reader relies on: one class for each name, and rooms of a size that can be seen at once."""

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "headgate"
MODULES = sorted(path for path in PACKAGE.rglob("*.py"))


def test_no_two_public_classes_have_the_same_name() -> None:
    places = defaultdict(list)
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    assert len(places) > 400
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
