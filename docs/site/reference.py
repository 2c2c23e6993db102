"""Writes the reference pages of the site that are made from code: the config, the commands, the example file."""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from headgate.__main__ import app
from headgate.config.file import hints_of
from headgate.config.gateway import GatewayConfig, Tenant
from headgate.config.nodes import expected
from headgate.config.output import TaskConfig
from headgate.model.lane import Lane
from headgate.model.replica import Replica
from headgate.model.tier import Tier

NAMED = {"lanes": Lane, "tenants": Tenant, "tiers": Tier, "output.tasks": TaskConfig}
"""Sections of the file that are mappings of names, although the code keeps tuples."""
FIXED = {Lane: ("name",), Tenant: ("name",), Tier: ("name",)}
"""Fields that the file does not set: the name is the mapping's key."""
PER_LANE = "its lane's own; [Concepts](concepts.md) has the four lanes'"
CONFIG = """# The config file

Every key of `headgate serve --config FILE`, made from the code that reads it. `headgate serve --config FILE --check`
says whether a file is fine. [The example](example.md) shows the same keys in one file.

Names that end in `_s` are seconds, in `_bytes` bytes. A key that is misspelt, of a wrong type, out of range or given
twice is refused with its line and path. `NAME` stands for a name of yours; `[]` for each entry of a list.
"""
COMMANDS = """# The commands

Every command with its flags, made from the code that reads them. `headgate COMMAND --help` shows the same.
"""
SOURCES = Path(__file__).resolve().parents[2] / "src"
NEWLINE_BOLD = "\n**"
"""Begins the first group of commands."""
EXAMPLE = """# An example of everything

`headgate.example.yaml` has every key with its default and what it means. Copy it, keep what you change and drop the
rest. It comes with the sources; [the reference](config.md) has the bounds.
"""


@dataclass(frozen=True)
class Key:
    """One key of the file."""

    name: str
    kind: str
    default: str
    meaning: str


def config_page() -> str:
    parts = [CONFIG]
    for path, about, keys in sections():
        parts.append(f"## `{path}`\n" if path else "## The sections\n")
        if about:
            parts.append(f"{about}\n")
        rows = [f"| `{key.name}` | {key.kind} | {key.default} | {key.meaning} |" for key in keys]
        parts.append("\n".join(["| key | value | default | meaning |", "|---|---|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def commands_page() -> str:
    text = app.generate_docs(output_format="markdown", recursive=True, heading_level=1)
    listed = text.partition("## Table of Contents")[2]  # the site has a table of its own
    return f"{COMMANDS}{listed[listed.index(NEWLINE_BOLD) :]}"


def example_page(root: Path) -> str:
    text = (root / "headgate.example.yaml").read_text(encoding="utf-8")
    return f"{EXAMPLE}\n```yaml\n{text}```\n"


def sections() -> Iterator[tuple[str, str, list[Key]]]:
    """Every mapping of the file: its path, its docstring, its keys."""
    yield from _section(GatewayConfig, "")


def _section(cls: Any, path: str) -> Iterator[tuple[str, str, list[Key]]]:
    docs, inner, keys = dict(docstrings(cls)), [], []
    for one in fields(cls):
        if one.name in FIXED.get(cls, ()):
            continue
        at = f"{path}.{one.name}" if path else one.name
        hint = hints_of(cls)[one.name]
        below = _below(hint, at)
        if below is not None:
            inner.append(below)
        kind = f"[a mapping](#{_anchor(below[1])})" if below is not None else _words(hint)
        keys.append(Key(one.name, kind, _default(cls, one), docs.get(one.name, "")))
    yield path, _about(cls), keys
    for inside, where in inner:
        yield from _section(inside, where)


def _anchor(path: str) -> str:
    return "".join(letter for letter in path.lower() if letter.isalnum() or letter in "_-")


def _below(hint: Any, path: str) -> tuple[Any, str] | None:
    """The class of a mapping in the file, and its path; None: the key has a plain value or a list of such."""
    if path in NAMED:
        return NAMED[path], f"{path}.NAME"
    if path == "replicas":
        return Replica, "replicas[]"
    inside = _without_none(hint)
    if is_dataclass(inside):
        return inside, path
    if get_origin(inside) is tuple and is_dataclass(get_args(inside)[0]):
        return get_args(inside)[0], f"{path}[]"
    return None


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, UnionType):
        return next(one for one in get_args(hint) if one is not NoneType)
    return hint


def _words(hint: Any) -> str:
    inside = _without_none(hint)
    may = " or null" if inside is not hint else ""
    if get_origin(inside) in (tuple, frozenset):
        return f"a list, each {_words(get_args(inside)[0])}{may}"
    if get_origin(inside) is dict:
        return f"a mapping, each {_words(get_args(inside)[1])}{may}"
    return _cell(expected(inside)) + may


def _default(cls: Any, one: "Field[Any]") -> str:
    if cls is Lane and one.default is MISSING:
        return PER_LANE
    if one.default is not MISSING:
        return _value(one.default)
    if one.default_factory is MISSING:
        return "**needed**"
    made = one.default_factory()
    return "–" if is_dataclass(made) else _value(made)


def _value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | frozenset | list | dict):
        plain = not any(is_dataclass(inside) for inside in (value.values() if isinstance(value, dict) else value))
        return f"`{_cell(str(list(value) if not isinstance(value, dict) else value))}`" if value and plain else "–"
    if is_dataclass(value):
        return "–"
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value}" if isinstance(value, int) else f"`{_cell(str(value))}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


@cache
def _about(cls: Any) -> str:
    doc = inspect.cleandoc(cls.__doc__ or "")
    return "" if doc.startswith(f"{cls.__name__}(") else " ".join(doc.split())


def docstrings(cls: Any) -> Iterator[tuple[str, str]]:
    """Each field's name and the text below it, in words of the file: None is null. Inherited fields come first."""
    for base in cls.__bases__:
        if is_dataclass(base):
            yield from docstrings(base)
    # Of the source file: a compiled class has no source to ask for.
    module = ast.parse((SOURCES / f"{cls.__module__.replace('.', '/')}.py").read_text(encoding="utf-8"))
    body = next(one for one in module.body if isinstance(one, ast.ClassDef) and one.name == cls.__name__)
    for one, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(below, ast.Expr):
            text = " ".join(str(ast.literal_eval(below.value)).split())
            yield (
                one.target.id,
                _cell(text).replace("None:", "null:").replace("True:", "true:").replace("False:", "false:"),
            )
