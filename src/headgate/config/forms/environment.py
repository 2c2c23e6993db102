"""Replaces `${NAME}` and `${NAME:-default}` in the values of a config by environment variables, so that a secret need
not be in the file. `$${` stands for `${` itself."""

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$(\$\{)|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}|\$\{")


class Unset(Exception):
    """A variable without a default is not set, or a reference is not complete; the message says which."""


def expanded(text: str, environ: Mapping[str, str]) -> str:
    """The text with its references replaced. Raises Unset."""

    def value(found: re.Match[str]) -> str:
        escaped, name, default = found.groups()
        if escaped:
            return "${"
        if name is None:
            raise Unset("expected ${NAME} or ${NAME:-default}; $${ stands for ${ itself")
        # As in a shell, `:-` also counts for a variable that is empty.
        if environ.get(name) or (default is None and name in environ):
            return environ[name]
        if default is None:
            raise Unset(f"${{{name}}}: the environment has no {name}; set it, or write ${{{name}:-default}}")
        return default

    return _REFERENCE.sub(value, text) if "${" in text else text
