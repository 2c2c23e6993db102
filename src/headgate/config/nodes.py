"""Reads values out of YAML's nodes, and words for values that do not fit.

YAML here is the 1.2 core: `yes`, `1:30`, `0777` and dates are text, not a boolean, 90, 511 and a date.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args, get_origin

import yaml

from headgate.config.forms.durations import seconds_of
from headgate.config.forms.environment import Unset, expanded
from headgate.model.errors import UsageError

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
    environ: Mapping[str, str] | None = None
    """What references to environment variables stand for; None: they are plain text."""

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        written = event.value
        if self.environ is not None and "${" in written:
            try:
                event.value = expanded(written, self.environ)
            except Unset as error:
                raise yaml.MarkedYAMLError(problem=str(error), problem_mark=event.start_mark) from None
        node: Any = super().compose_scalar_node(anchor)
        if node.value != written:
            node.written = written
        return cast(yaml.ScalarNode, node)


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(f"{_TAG}{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first)


def compose(text: str, name: str, environ: Mapping[str, str] | None = None) -> yaml.Node | None:
    """`environ`: what ${NAME} stands for in values; None: such text is kept as it is."""
    loader = type("_Loader", (_Loader,), {"environ": environ})
    try:
        root: yaml.Node | None = yaml.compose(text, Loader=loader)
        return root
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark else name
        said = ", ".join(part for part in (error.context, error.problem) if part)
        if "${" in said:
            raise UsageError(f"{where}: {said}") from None
        if "'\\t'" in said or (mark and _indented_by_tab(text, mark.line)):
            raise UsageError(f"{where}: a tab in front of the text: YAML is indented with spaces") from None
        raise UsageError(f"{where}: not YAML: {said}") from None
    except RecursionError:
        raise UsageError(f"{name}: not a config: nested too deep") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise UsageError(f"{name}: not YAML: {' '.join(str(error).split())}") from None


def _indented_by_tab(text: str, line: int) -> bool:
    lines = text.splitlines()
    return line < len(lines) and re.match(r" *\t", lines[line]) is not None


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
        if check.duration and isinstance(written := plain(node), str):
            value = BAD if (seconds := seconds_of(written)) is None else seconds
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

DURATION_TOO = ", or a time such as 5m"
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path"}


def expected(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        base, check = get_args(hint)
        return f"{expected(base)} {check.expected}{DURATION_TOO if check.duration else ''}"
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
    if (written := getattr(node, "written", None)) is not None:
        return f"what {short(written)} stands for"  # a secret, perhaps
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


def advice(hint: Any, value: str) -> str:
    """What to do about a value that does not fit, as the end of its message; empty: nothing is known."""
    check = get_args(hint)[1] if get_origin(hint) is Annotated else None
    said = check.advice(value) if check is not None and check.advice is not None else ""
    return f"; {said}" if said else ""


def short(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:39] + "…")


def join(path: str, key: str) -> str:
    word = key if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", key) else short(key)
    return f"{path}.{word}" if path else word
