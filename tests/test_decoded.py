"""Whatever is decoded into has the types of its fields, also where its module is compiled.

mypyc keeps the type of a compiled class's field only where that is a plain class: `Literal[…]` and `int | None` both
become `type`. So nothing that reads a file or a body may go by the fields of a class in a compiled module. These tests
know which modules those are from hatch_build.py, and find such a class on the sources as on the compiled copy.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from hatch_build import HOT

import headgate
from headgate.config.bounds import BOUNDS
from headgate.config.file import hints_of
from headgate.config.gateway import GatewayConfig
from headgate.explain.neighbours import Neighbour
from headgate.model.event import Arrived, QuoteAsked, ReplicaJoined, Resumed
from headgate.policy.dispatch.view import DispatcherView, LaneCounts, ReplicaView
from headgate.publish.incidents.flight import Flight

COMPILED = {f"headgate.{package}.{name}" for package, names in HOT.items() for name in names.split()}
BY_HAND: set[type] = {Arrived, QuoteAsked, ReplicaJoined, Resumed}
"""Structs with a field of a compiled class, which replay/replay.py makes by itself."""
NEVER_DECODED: set[type] = {Flight, Neighbour, DispatcherView, LaneCounts, ReplicaView}


def leaves(hint: Any) -> Iterator[type]:
    """The classes that a hint names."""
    if isinstance(hint, type) and not get_args(hint):
        yield hint
    for argument in get_args(hint):
        yield from leaves(argument)


def read_from_a_file(cls: type, seen: set[type]) -> set[type]:
    """This class and those that its fields name."""
    if is_dataclass(cls) and cls not in seen:
        seen.add(cls)
        for hint in hints_of(cls).values():
            for leaf in leaves(hint):
                read_from_a_file(leaf, seen)
    return seen


CONFIG = sorted(read_from_a_file(GatewayConfig, set()), key=lambda cls: cls.__name__)


OPTIONAL = ("grpc", "torch", "triton")
"""Libraries of extras: where one is missing, the modules that need it are left out. They decode nothing."""


def structs() -> list[type[msgspec.Struct]]:
    """Every Struct of the package. What runs inside vLLM needs vLLM, is not compiled, and decodes nothing."""
    for module in pkgutil.walk_packages(headgate.__path__, "headgate."):
        if module.name.startswith("headgate.vllm."):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in OPTIONAL:
                raise
    found: set[type[msgspec.Struct]] = set()
    look = [msgspec.Struct]
    while look:
        made = look.pop().__subclasses__()
        look += made
        found.update(cls for cls in made if cls.__module__.startswith("headgate."))
    return sorted(found, key=lambda cls: (cls.__module__, cls.__name__))


def test_the_config_names_the_nouns_of_compiled_modules() -> None:
    assert {cls.__name__ for cls in CONFIG if cls.__module__ in COMPILED} == {"Lane", "Replica", "Tier"}


@pytest.mark.parametrize("cls", CONFIG, ids=lambda cls: cls.__name__)
def test_every_setting_has_its_whole_type(cls: type) -> None:
    names = {one.name for one in fields(cls)}
    if cls.__module__ in COMPILED:
        assert names == set(BOUNDS[cls]), "config/bounds.py names every field of a compiled class"
    for name in names:
        lost = {type, tuple, list, dict, set, frozenset} & set(leaves(hints_of(cls)[name]))
        assert not lost, f"{cls.__name__}.{name} is only {lost}"


def test_no_struct_decodes_into_a_compiled_class() -> None:
    for cls in structs():
        if cls in BY_HAND | NEVER_DECODED:
            continue
        assert cls.__module__ not in COMPILED, cls
        look: list[type] = [cls]
        seen: set[type] = set()
        while look:
            hints = get_type_hints(look.pop()).values()
            named = {leaf for hint in hints for leaf in leaves(hint)} - seen
            assert not {leaf for leaf in named if leaf.__module__ in COMPILED}, cls
            seen |= named
            look += [leaf for leaf in named if is_dataclass(leaf)]
