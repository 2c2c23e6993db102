"""The tree keeps the rules that a reader relies on: one class for each name, and rooms of a size that can be seen at
once."""

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "headgate"
MODULES = sorted(path for path in PACKAGE.rglob("*.py"))


def test_no_two_public_classes_have_the_same_name() -> None:
    places = defaultdict(list)
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    assert len(places) > 400
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_folder_has_more_than_sixteen_modules() -> None:
    sizes = Counter(path.parent.relative_to(PACKAGE) for path in MODULES if path.name != "__init__.py")
    assert {str(folder): size for folder, size in sizes.items() if size > 16} == {}


def test_every_module_that_prose_names_is_there() -> None:
    prose = [*MODULES, *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")]
    places = (ROOT, PACKAGE, ROOT / "benchmarks", ROOT / "tests")
    missing = set()
    for path in prose:
        for named in re.findall(r"(?<![\w./-])(?:\w+/)+\w+\.py\b", path.read_text(encoding="utf-8")):
            if not any((place / named).is_file() for place in (*places, path.parent)):
                missing.add(f"{path.relative_to(ROOT)}: {named}")
    assert sorted(missing) == []
