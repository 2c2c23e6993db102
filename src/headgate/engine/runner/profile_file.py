"""Loads profiles from a known name, a file, or the step log of a real engine."""

from itertools import chain
from pathlib import Path

import msgspec

from headgate.engine.runner import step_log
from headgate.machine.profile import PROFILES, Profile
from headgate.machine.profile_fit import TooFewSteps, fit
from headgate.model.errors import UsageError

VERSION = 1


class _File(msgspec.Struct, tag_field="headgate", tag="profile", forbid_unknown_fields=True, kw_only=True):
    version: int = VERSION
    profile: Profile


def find(name: str) -> Profile:
    """Returns a known profile by its name, or the one in a .json file."""
    if name in PROFILES:
        return PROFILES[name]
    if Path(name).suffix == ".json":
        return load(Path(name))
    raise UsageError(f"no profile {name!r}: choose {', '.join(PROFILES)}, or name a fitted one, FILE.json")


def load(path: Path) -> Profile:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"can't read the profile {path} ({error.strerror}); name another file") from error
    try:
        file = msgspec.json.decode(data, type=_File)
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} is not a profile ({error}); fit it again") from error
    if file.version != VERSION:
        raise UsageError(f"{path} is a profile of version {file.version}, this is {VERSION}; fit it again")
    return file.profile


def dump(profile: Profile, path: Path) -> None:
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(_File(profile=profile)), indent=0) + b"\n")
    except OSError as error:
        raise UsageError(f"can't write the profile {path} ({error.strerror}); name another file") from error


def fitted(log: Path, name: str, *more: Path) -> Profile:
    """Returns the profile of the engine that wrote this step log. `more`: its logs at other times."""
    header = step_log.read_header(log)
    try:
        of = msgspec.convert({**header.profile, "name": name, "cost": {}}, Profile)
        return fit(chain.from_iterable(map(step_log.read, (log, *more))), of)
    except msgspec.ValidationError as error:
        raise UsageError(f"{log}, line 1: not the header of a step log ({error})") from error
    except TooFewSteps as error:
        raise UsageError(f"{log}: {error}") from error
