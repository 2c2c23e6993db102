"""Reads secrets that a config keeps in files of their own: `NAME_file` in the place of a secret `NAME`.

The file holds the value alone, and a line end behind it does not count. Where several values are meant, each has a line
of its own.
"""

from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

MOST_BYTES = 65_536
"""Maximum size of such a file: a larger one is something else."""
SUFFIX = "_file"


class Unusable(Exception):
    """The file can't be used; the message says why, and never what it holds."""


def is_secret(hint: Any) -> bool:
    """Whether a value of this type, or each of several, must not be shown."""
    if get_origin(hint) is Annotated:
        base, check = get_args(hint)
        return bool(check.secret) or is_secret(base)
    if get_origin(hint) in (Union, UnionType, tuple):
        return any(is_secret(one) for one in get_args(hint) if one is not NoneType and one is not Ellipsis)
    return get_origin(hint) is dict and is_secret(get_args(hint)[1])


def read_lines(path: Path) -> list[str]:
    """The lines of the file that are not blank, without the space around them. Raises Unusable."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise Unusable(f"can't read {path}: {error.strerror or error}") from None
    if len(content) > MOST_BYTES:
        raise Unusable(f"{path} has more than {MOST_BYTES} bytes: is it the right file?")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise Unusable(f"{path} is not UTF-8 text") from None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise Unusable(f"{path} is empty")
    return lines
