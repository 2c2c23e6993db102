"""Finds the handler for a method and path."""

from collections.abc import Mapping
from typing import Final

from headgate.wire.errors import Headers, refusal_body
from headgate.wire.exchange import Exchange, Handler

FORM: Final = "multipart/form-data"
Routes = Mapping[tuple[str, str], Handler]
"""(method, path) → handler. A path ending in `/*` takes everything below; a GET route answers HEAD as well."""


class Router:
    """A Handler that calls the route's own."""

    def __init__(self, routes: Routes, forms: frozenset[str] = frozenset()) -> None:
        """`forms`: paths to which multipart/form-data is POSTed; JSON to all others."""
        self._forms = forms
        self.table: list[tuple[str, str]] = list(routes)
        """All routes, for the description of the API."""
        self._routes = dict(routes)
        self._allowed: dict[str, list[str]] = {}
        for method, path in routes:
            self._allowed.setdefault(path, []).append(method)
        for (method, path), handler in routes.items():
            if method == "GET" and ("HEAD", path) not in routes:
                self._routes["HEAD", path] = handler
                self._allowed[path].append("HEAD")

    def __call__(self, exchange: Exchange) -> None:
        handler = self._routes.get((exchange.method, exchange.path)) or self._by_folder(exchange)
        if handler is None:
            self._refuse(exchange)
        elif exchange.method == "POST" and not self._is_fit(exchange):
            self._refuse_type(exchange)
        else:
            handler(exchange)

    def expects(self, exchange: Exchange) -> bool:
        """Whether a handler takes the request, as far as its headers tell; otherwise it has been answered."""
        if (exchange.method, exchange.path) not in self._routes and self._by_folder(exchange) is None:
            self._refuse(exchange)
        elif exchange.method == "POST" and not self._is_fit(exchange):
            self._refuse_type(exchange)
        return not exchange.done

    def _is_fit(self, exchange: Exchange) -> bool:
        """Whether the body of a POST is of the type that its path takes."""
        given = exchange.headers.get("content-type")
        if exchange.path in self._forms:
            return given is not None and given.partition(";")[0].strip().lower() == FORM
        return _is_json(given)

    def _refuse_type(self, exchange: Exchange) -> None:
        wanted = FORM if exchange.path in self._forms else "application/json"
        _respond(exchange, 415, f"content-type must be {wanted}")

    def _by_folder(self, exchange: Exchange) -> Handler | None:
        path = _folder(exchange.path, self._allowed)
        return self._routes.get((exchange.method, path)) if path is not None else None

    def _refuse(self, exchange: Exchange) -> None:
        allowed = self._allowed.get(exchange.path) or self._allowed.get(_folder(exchange.path, self._allowed) or "")
        if allowed is None:
            _respond(exchange, 404, f"no such path: {exchange.path[:256]}")
        else:
            allow = ", ".join(sorted(allowed))
            _respond(exchange, 405, f"{exchange.path} answers {allow}", (("allow", allow),))


def _folder(path: str, known: Mapping[str, object]) -> str | None:
    """The deepest route of the form `/x/*` that the path is below; None: there is none."""
    folder = path
    while folder:
        folder, _, last = folder.rpartition("/")
        if last and f"{folder}/*" in known:
            return f"{folder}/*"
    return None


def _respond(exchange: Exchange, status: int, message: str, headers: Headers = ()) -> None:
    exchange.respond(status, refusal_body(status, message), headers=headers)


def _is_json(content_type: str | None) -> bool:
    # None: clients of local tools, such as curl, often send no type, and the body is parsed strictly anyway.
    if content_type is None or content_type == "application/json":
        return True
    return content_type.partition(";")[0].strip().lower() == "application/json"
