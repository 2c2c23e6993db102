"""Derives command-line flags from the fields of a config class: spelling, type, bounds and help text.

A field `kv_tokens` is the flag --kv-tokens; a field in seconds, `gap_target_s`, is --gap-target-ms. Help is the field's
docstring, in which "; None: …" becomes "Default: …".
"""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import Field, dataclass, fields
from textwrap import dedent
from types import GenericAlias, NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from headgate.config.hints import Check


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    field: str
    """Name in the config class."""
    name: str
    """Name on the command line: underscores stand for hyphens."""
    group: str
    type: Any
    """bool, int, float, str, Path, or a tuple of one of these for a flag that may be given several times."""
    check: Check | None
    """Bounds of the value in the field; None: any value."""
    default: Any
    help: str

    @property
    def in_ms(self) -> bool:
        return self.name.endswith("_ms")

    @property
    def spelled(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    def value(self, given: Any) -> Any:
        """Returns the field's value of what the command line gives."""
        return given / 1e3 if self.in_ms else given

    def words(self, value: Any) -> list[str]:
        """Returns the words of a command line that give the field this value; none for the default."""
        if value == self.default:
            return []
        if self.type is bool:
            return [self.spelled]
        values = value if isinstance(value, tuple) else (round(value * 1e3, 6) if self.in_ms else value,)
        return [word for one in values for word in (self.spelled, str(one))]


def flags_of(cls: Any) -> tuple[Flag, ...]:
    hints, docs = get_type_hints(cls, include_extras=True), dict(_docstrings(cls))
    return tuple(_flag(one, hints[one.name], docs[one.name]) for one in fields(cls))


def words_of(config: Any, group: str | None = None) -> list[str]:
    """Returns the command line that stands for a config; `group`: only its flags of this group."""
    made = flags_of(type(config))
    return [word for one in made if group in (None, one.group) for word in one.words(getattr(config, one.field))]


def _flag(one: "Field[Any]", hint: Any, doc: str) -> Flag:
    several = get_origin(hint) is tuple
    (inner, *_) = [part for part in get_args(hint) if part is not NoneType] if several or _is_optional(hint) else [hint]
    base, check = get_args(inner) if get_origin(inner) is Annotated else (inner, None)
    name = one.metadata.get("flag", one.name)
    if base is float and name.endswith("_s"):
        name = f"{name[:-2]}_ms"
    if several:
        doc = f"{doc.rstrip('.')}; may be given several times."
    elif one.default is not None and base is not bool:
        doc = f"{doc} Default: {one.default}."
    return Flag(
        field=one.name,
        name=name,
        group=one.metadata["group"],
        type=GenericAlias(tuple, (base, ...)) if several else base,
        check=check,
        default=one.default,
        help=doc.replace("; None: ", ". Default: "),
    )


def _is_optional(hint: Any) -> bool:
    return NoneType in get_args(hint)


def _docstrings(cls: type) -> Iterator[tuple[str, str]]:
    """Yields each field's name and the text below it."""
    (body,) = ast.parse(dedent(inspect.getsource(cls))).body
    assert isinstance(body, ast.ClassDef)
    for one, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            assert isinstance(below, ast.Expr)
            yield one.target.id, " ".join(ast.literal_eval(below.value).split())
