"""Reads the parameters of a list. Unknown ones are ignored, as OpenAI does; wrong ones are named."""

from urllib.parse import parse_qsl

from headgate.model.errors import InvalidRequest


class Query:
    def __init__(self, query: str, known: tuple[str, ...]) -> None:
        self._values = {name: value for name, value in parse_qsl(query) if name in known}

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def number(self, name: str, default: int, most: int) -> int:
        given = self._values.get(name)
        if given is None:
            return default
        if not (given.isascii() and given.isdigit() and len(given) < 10 and 1 <= int(given) <= most):
            raise InvalidRequest(f"{name} must be a number from 1 to {most}", param=name)
        return int(given)

    def one_of(self, name: str, known: tuple[str, ...]) -> str | None:
        given = self._values.get(name)
        if given is not None and given not in known:
            raise InvalidRequest(f"{name} must be one of {', '.join(known)}", param=name)
        return given
