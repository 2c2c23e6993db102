"""Values that policies take and hand out can't be changed by the one that gets them."""

import importlib
import pkgutil

import msgspec
import pytest

import headgate.model
import headgate.policy


def _structs() -> list[type[msgspec.Struct]]:
    found = {}
    for package in (headgate.model, headgate.policy):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for thing in vars(importlib.import_module(module.name)).values():
                if isinstance(thing, type) and issubclass(thing, msgspec.Struct) and thing.__module__ == module.name:
                    found[f"{thing.__module__}.{thing.__name__}"] = thing
    return [found[name] for name in sorted(found)]


@pytest.mark.parametrize("struct", _structs(), ids=lambda struct: struct.__name__)
def test_a_value_refuses_to_be_changed(struct: type[msgspec.Struct]) -> None:
    value = struct(**dict.fromkeys(struct.__struct_fields__))
    for name in struct.__struct_fields__:
        with pytest.raises(AttributeError, match="immutable"):
            setattr(value, name, None)
