"""The tree keeps the rules that a reader relies on: one class for each name, and rooms, files,
functions and constructors of a size that can be seen at once."""

import ast
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.config.gateway import GatewayConfig
from headgate.policy.compose import dispatcher_for

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "headgate"
MODULES = sorted(path for path in PACKAGE.rglob("*.py"))
DRIVEN = {"on", "wake_at", "unfinished", "reconfigure"}
ASKED = {
    *("lanes", "tiers", "view", "waiting", "running", "queued", "under_way", "holdings", "computed", "answer_pace"),
    *("replicas", "replica", "standing", "sent_to", "room", "with_room", "any_usable", "unserved"),
    *("cached_tokens", "spare"),
    *("utilisation", "use_of", "gauges_from"),
    *("limits_of", "over_limit", "rates", "shared_limits", "part"),
}
"""All that is asked of a dispatcher outside its own folder: its drivers' part, and what it answers to others."""
LOOKUPS = {"lanes": {"values", "items", "get"}, "tiers": {"values", "items", "get"}}
"""Frozen values by name, which may be looked up; nothing else that a dispatcher has is gone through."""
INSIDE = ("queues", "passage", "prefills", "turns", "sending", "admit", "retry", "races", "versions")
INDEX = ("index", "book", "entry", "full")
FLEET_OWNERS = ("ManagedPool", "ProcessFleet")
"""Owners that a gateway has only where it starts and stops replicas itself."""
MOST_REGISTRIES = 7


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


def test_the_glossary_has_each_word_once_in_alphabetical_order() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    nouns, verbs = (re.findall(r"^\| \*\*([^*]+)\*\*", part, re.MULTILINE) for part in text.split("## Verbs"))
    assert len(nouns) > 60
    assert len(verbs) > 15
    assert nouns == sorted(set(nouns))
    assert verbs == sorted(set(verbs))


def test_every_file_that_contributing_names_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:`|\()((?:[\w.-]+/)*[\w-]+\.(?:py|md|toml|yaml|js))(?:`|\))", text))
    assert len(named) > 40
    assert sorted(name for name in named if not any((place / name).is_file() for place in (ROOT, PACKAGE))) == []


def test_every_decision_is_listed_and_every_number_is_accounted_for() -> None:
    folder = ROOT / "docs" / "decisions"
    text = (folder / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:\[(\d{4})\]\(([^)]+)\)|(\d{4})) \|", text, re.MULTILINE)
    assert sorted(name for _, name, _ in rows if name) == sorted(path.name for path in folder.glob("0*.md"))
    assert [int(used or unused) for used, _, unused in rows] == list(range(1, len(rows) + 1))


def _is_dispatcher(node: ast.AST) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.lstrip("_") == "dispatcher"


def _reaches(path: Path) -> Iterator[str]:
    """Places where a module asks a dispatcher for something that is not on the list, or goes through what it has."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            room, _, name = node.module.removeprefix("headgate.policy.").partition(".")
            if (room == "dispatch" and name in INSIDE) or (room == "replicas" and name in INDEX):
                yield f"{where}: import of {node.module}"
        if not isinstance(node, ast.Attribute):
            continue
        if _is_dispatcher(node.value) and node.attr not in DRIVEN | ASKED:
            yield f"{where}: {node.attr}"
        inner = node.value
        through = isinstance(inner, ast.Attribute) and _is_dispatcher(inner.value)
        if isinstance(inner, ast.Attribute) and through and node.attr not in LOOKUPS.get(inner.attr, ()):
            yield f"{where}: {inner.attr}.{node.attr}"


def test_no_module_reaches_into_the_dispatcher() -> None:
    """Only policy/ knows its insides; all other rooms read `view(now)` or one of its own methods."""
    modules = [path for path in MODULES if not path.is_relative_to(PACKAGE / "policy")]
    assert [one for path in modules for one in _reaches(path)] == []


def test_what_may_be_asked_of_a_dispatcher_is_there() -> None:
    dispatcher = dispatcher_for(GatewayConfig(), random.Random(1))
    assert sorted(name for name in DRIVEN | ASKED if not hasattr(dispatcher, name)) == []


def _registries() -> Iterator[str]:
    """Class.attribute of every dict or set whose annotation says that replica ids are its keys, in what a running
    gateway is made of. Of launchers only the one for processes: the others take its place."""
    for room in ("gateway", "upkeep", "policy", "measure", "publish", "surface", "fleet", "wiring"):
        for path in (PACKAGE / room).rglob("*.py"):
            if path.name in ("ray_fleet.py", "kubernetes_fleet.py"):
                continue
            tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            for owner in [node for node in tree if isinstance(node, ast.ClassDef)]:
                for node in ast.walk(owner):
                    if isinstance(node, ast.AnnAssign) and re.match(
                        r"(dict|set|OrderedDict)\[ReplicaId\b", ast.unparse(node.annotation)
                    ):
                        yield f"{owner.name}.{ast.unparse(node.target).removeprefix('self.')}"


def test_the_table_of_owners_has_every_registry_keyed_by_replica_id() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| `(\w+\.\w+)`", text, re.MULTILINE)
    by_annotation = {"Figures._warm_at", *_registries()}  # whose annotation says str
    assert {name for _, name in rows} == by_annotation
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    assert len(rows) <= MOST_REGISTRIES
    with_fleet = [name for _, name in rows if name.split(".")[0] in FLEET_OWNERS]
    counts = f"**{len(rows) - len(with_fleet)} with a fixed list of replicas, {len(rows)} with a fleet of processes.**"
    assert counts in text


def _assigned_elsewhere(path: Path) -> Iterator[str]:
    """Assignments to attributes of an object that its own methods do not make: of anything in wiring, elsewhere of what
    a function was given or its object holds. An exchange belongs to the handler that it was given to."""
    in_wiring = path.parent.name == "wiring"
    for _, node in _defined(ast.parse(path.read_text(encoding="utf-8")), ""):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        given = {each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
        for each in ast.walk(node):
            if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
                owner = ast.unparse(each.value)
                held = owner.startswith("self.") or owner.split(".")[0] in given - {"self", "exchange"}
                if owner != "self" and (in_wiring or held):
                    yield f"{path.relative_to(PACKAGE)}: {ast.unparse(each)}"


def test_no_attribute_is_assigned_from_outside() -> None:
    rooms = ("wiring", "upkeep", "surface")
    found = [each for room in rooms for path in (PACKAGE / room).rglob("*.py") for each in _assigned_elsewhere(path)]
    assert sorted(set(found)) == []


def test_an_assignment_from_outside_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path)
    for room, text, expected in (
        ("wiring", "def build():\n    gateway = make()\n    gateway.hold = 1\n", ["wiring/a.py: gateway.hold"]),
        ("upkeep", "class A:\n    def __init__(self, b):\n        b.told = self.take\n", ["upkeep/a.py: b.told"]),
        ("surface", "class A:\n    def f(self):\n        self._b.on = 1\n", ["surface/a.py: self._b.on"]),
        ("surface", "def f(exchange):\n    exchange.on_gone = g\n    row = Row()\n    row.cost = 1\n", []),
    ):
        (tmp_path / room).mkdir(exist_ok=True)
        (tmp_path / room / "a.py").write_text(text, encoding="utf-8")
        assert list(_assigned_elsewhere(tmp_path / room / "a.py")) == expected


MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 9


def _defined(node: ast.AST, inside: str) -> Iterator[tuple[str, ast.AST]]:
    """Every class and function below a node, with its qualified name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield (name := f"{inside}{child.name}"), child
            yield from _defined(child, f"{name}.")
        else:
            yield from _defined(child, inside)


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or 0) - node.lineno + 1


def _parameters(node: ast.AST) -> int:
    """Arguments that a constructor takes, or that the one of a dataclass requires. Zero for values: frozen dataclasses,
    and constructors that only set Final attributes."""
    if isinstance(node, ast.ClassDef):
        declared = [ast.unparse(field.annotation) for field in node.body if isinstance(field, ast.AnnAssign)]
        for inner in node.body if declared and all(each.startswith("Final[") for each in declared) else ():
            if isinstance(inner, ast.FunctionDef):
                inner.sets_finals = True  # type: ignore[attr-defined]
        made = [ast.unparse(decorator) for decorator in node.decorator_list]
        if not any("dataclass" in each and "frozen=True" not in each for each in made):
            return 0
        return sum(isinstance(field, ast.AnnAssign) and field.value is None for field in node.body)
    if isinstance(node, ast.FunctionDef) and node.name == "__init__":
        if getattr(node, "sets_finals", False):
            return 0
        if all(": Final = " in (line := ast.unparse(each)) or line.startswith(("'", '"')) for each in node.body):
            return 0
        return len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs) - 1
    return 0


def test_files_functions_and_constructors_are_small() -> None:
    files, functions, constructors = [], [], []
    for path in MODULES:
        module, text = str(path.relative_to(PACKAGE)), path.read_text(encoding="utf-8")
        if len(text.splitlines()) > MAX_FILE_LINES:
            files.append(module)
        for name, node in _defined(ast.parse(text), f"{module} "):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _lines(node) > MAX_FUNCTION_LINES:
                functions.append(name)
            if _parameters(node) > MAX_PARAMETERS:
                constructors.append(name)
    assert (files, functions, constructors) == ([], [], [])
