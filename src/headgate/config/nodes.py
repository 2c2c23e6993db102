"""Reads values out of YAML's nodes, and words for values that do not fit.

YAML here is the 1.2 core: `yes`, `1:30`, `0777` and dates are text, not a boolean, 90, 511 and a date.
"""

import re
from collections.abc import Callable
from dataclasses import is_dataclass
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml

from headgate.model.errors import StartupError

_TAG = "tag:yaml.org,2002:"
LIST, MAPPING = f"{_TAG}seq", f"{_TAG}map"
BAD: Any = object()
"""Stands for a value that could not be read; the problem is noted."""
_PLAIN: dict[str, Callable[[str], Any]] = {
    f"{_TAG}null": lambda _: None,
    f"{_TAG}bool": lambda text: {"true": True, "false": False}[text.lower()],
    f"{_TAG}int": int,
    f"{_TAG}float": float,
    f"{_TAG}str": str,
}


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {}  # noqa: RUF012 - PyYAML's own name and shape


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(f"{_TAG}{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first)


def compose(text: str, name: str) -> yaml.Node | None:
    try:
        root: yaml.Node | None = yaml.compose(text, Loader=_Loader)
        return root
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark else name
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise StartupError(f"{where}: not YAML: {said}") from None
    except RecursionError:
        raise StartupError(f"{name}: not a config: nested too deep") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise StartupError(f"{name}: not YAML: {' '.join(str(error).split())}") from None


def plain(node: yaml.Node) -> Any:
    """The value of a scalar node, or BAD."""
    if not isinstance(node, yaml.ScalarNode) or node.tag not in _PLAIN:
        return BAD
    try:
        value = _PLAIN[node.tag](node.value)
    except (ValueError, LookupError):
        return BAD
    return BAD if isinstance(value, float) and not isfinite(value) else value


def scalar(hint: Any, node: yaml.Node) -> Any:
    """The value of a node if it fits the hint, else BAD."""
    if get_origin(hint) is Annotated:
        base, check = get_args(hint)
        value = scalar(base, node)
        return value if value is not BAD and check.allows(value) else BAD
    value = plain(node)
    if get_origin(hint) is Literal:
        return value if value in get_args(hint) else BAD
    if hint is Path:
        return Path(value) if type(value) is str and value and value.isprintable() else BAD
    if hint is float and type(value) is int:
        return float(value) if abs(value) < 1 << 63 else BAD
    return value if type(value) is hint else BAD


# -- words ------------------------------------------------------------------------------------------------

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path"}


def expected(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        base, check = get_args(hint)
        return f"{expected(base)} {check.expected}"
    if get_origin(hint) is Literal:
        return f"one of {', '.join(get_args(hint))}"
    if is_dataclass(hint) or get_origin(hint) is dict:
        return "a mapping"
    return "a list" if get_origin(hint) in (tuple, frozenset) else _WORDS[hint]


def got(hint: Any, node: yaml.Node) -> str:
    """What the file has instead of the expected value. Text that may be a key is not shown."""
    if node.tag not in (*_PLAIN, LIST, MAPPING):
        return f"the tag {short(node.tag)}"
    if isinstance(node, yaml.CollectionNode):
        return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"
    value = plain(node)
    if value is None:
        return "nothing"
    base, *checks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if expected(base) in ("a list", "a mapping"):
        return "a single value"
    if any(check.secret for check in checks):
        return "something else"
    if isinstance(value, bool | int | float):
        return f"{node.value[:40]}{': put it in quotes' if base in (str, Path) else ''}"
    return short(node.value)


def short(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:39] + "…")


def join(path: str, key: str) -> str:
    word = key if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", key) else short(key)
    return f"{path}.{word}" if path else word
