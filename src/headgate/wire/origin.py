"""Decides whether a request from a web page may pass: the door in front of every route.

Browsers let any page send requests to any address, even to this machine, and only say whose page it is. Where no key is
needed, nothing else tells pages apart. A client that is no browser names no page, and is let through.

A page may send requests if it comes from here, if its origin is allowed by config (paths below /v1 only; the answers
then carry CORS headers), or if it sends a key and the path asks for keys: the route judges the key. Where a request
without a key is served and only this machine is listened to, the Host must also be a name of this machine. Any other
name was pointed here by its owner (DNS rebinding), and to the browser that owner's page and this gateway are then the
same origin.
"""

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from headgate.wire.errors import Headers, refusal_body
from headgate.wire.exchange import Exchange, Handler

ANY: Final = "*"
"""Among allowed origins: every page."""
KEY_PREFIX: Final = "openai-insecure-api-key."
"""Prefix of a key among the subprotocols, where browsers, which can't set headers on a WebSocket, put it, as for
OpenAI."""
EXPOSED: Final = ", ".join(
    ["x-request-id", "retry-after", "retry-after-ms", "x-headgate-max-tokens"]
    + [f"x-ratelimit-{figure}-{of}" for figure in ("limit", "remaining", "reset") for of in ("requests", "tokens")]
)
"""Headers of an answer that a page from another origin may read."""
PREFLIGHT_KEPT_S: Final = 600
MOST_HOSTS: Final = 256
"""Spellings of this machine's name that are remembered."""
_PORTS: Final = {"http": 80, "https": 443}
_LOCAL: Final = ("localhost", "localhost.localdomain", "ip6-localhost")
_HEALTH: Final = ("/health/live", "/health/ready", "/health")
_PUBLIC: Final = (*_HEALTH, "/", "/docs", "/docs/style.css", "/docs/try.js", "/openapi.json")
_LOOKING: Final = ("GET", "HEAD")


def key_in(headers: dict[str, str]) -> str:
    """The key that a request brings; empty: none."""
    given = headers.get("authorization", "")
    return given[7:].strip() if given[:7].lower() == "bearer " else headers.get("x-api-key", "")


def key_offered(protocols: str) -> str:
    """The key among a WebSocket's subprotocols; empty: none."""
    key = ""
    for name in protocols.split(","):
        if name.strip().startswith(KEY_PREFIX):
            key = name.strip().removeprefix(KEY_PREFIX)
    return key


def is_local(host: str) -> bool:
    """Whether a Host header names this machine."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
        return name in _LOCAL or name.endswith(".localhost") or ip_address(name).is_loopback
    except ValueError:
        return False


def is_foreign(headers: dict[str, str]) -> bool:
    """Whether a browser sent the request for a page that is not from here."""
    if headers.get("sec-fetch-site", "none").lower() not in ("none", "same-origin"):
        return True
    origin = headers.get("origin")
    if origin is None:
        return False
    try:
        page = urlsplit(origin)
        port = _PORTS[page.scheme]
        here = urlsplit(f"//{headers.get('host', '')}")
        return (page.hostname, page.port or port) != (here.hostname, here.port or port)
    except (KeyError, ValueError):  # such as `null`: a file, or a sandboxed frame
        return True


class Door:
    """A Handler in front of another one."""

    def __init__(self, inside: Handler, *, loopback_only: bool, names: Iterable[str] = ()) -> None:
        """`loopback_only`: only this machine is listened to. `names`: further names of it, used by a proxy in front."""
        self._inside = inside
        self._loopback_only = loopback_only
        self._names = frozenset([name.lower() for name in names])
        self._hosts: set[str] = set()
        """Host headers that were found to name this machine."""
        self.change()

    def change(
        self,
        origins: Iterable[str] = (),
        *,
        clients_have_keys: bool = False,
        admins_have_keys: bool = False,
        anonymous: bool = False,
    ) -> None:
        """Sets from now on the origins whose pages may use /v1, and whether there are keys for it, or for /admin.
        `anonymous`: although there are keys, requests without one are served too."""
        self._origins = frozenset([origin.lower() for origin in origins])
        self._clients_have_keys = clients_have_keys
        self._admins_have_keys = admins_have_keys
        serves_anybody = anonymous or not clients_have_keys
        self._checks_host = serves_anybody and (self._loopback_only or bool(self._names))

    def __call__(self, exchange: Exchange) -> None:
        if self.lets_in(exchange):
            self._inside(exchange)

    def lets_in(self, exchange: Exchange) -> bool:
        """Whether the routes get the request; otherwise it has been answered. Its headers are enough to tell."""
        headers = exchange.headers
        origin = headers.get("origin")
        from_page = origin is not None or "sec-fetch-site" in headers
        # To a page's own origin, browsers send an Origin with every method but these two.
        if not from_page and exchange.method not in _LOOKING:
            return True
        unknown_host = self._checks_host and headers.get("host", "") not in self._hosts
        if unknown_host and not self._brings_key(exchange) and not self._knows_host(exchange):
            return False
        if not from_page:
            return True
        if origin is not None and self._origins and exchange.path.startswith("/v1/") and self._allows(origin):
            return self._let_in_from(exchange, origin)
        if not is_foreign(headers) or self._is_public(exchange) or self._brings_key(exchange):
            return True
        page = f"the page {origin[:256]}" if origin else "a page from elsewhere"
        way = "add its origin to cors.origins, or use a key" if exchange.path.startswith("/v1/") else "use a key"
        _refuse(exchange, f"{page} may not use this path without a key: {way}")
        return False

    def greet(self, exchange: Exchange) -> None:
        """Adds the headers that let an allowed page read the answer: for requests that are refused before anything
        else."""
        origin = exchange.headers.get("origin")
        if origin is not None and self._origins and exchange.path.startswith("/v1/") and self._allows(origin):
            self._speak_to(exchange, origin)

    def still_lets_in(self, path: str, headers: dict[str, str]) -> bool:
        """Whether a page that was let in may stay: checked again when the rules have changed."""
        origin = headers.get("origin")
        if origin is None or self._allows(origin) or not is_foreign(headers):
            return True
        return self._asks_for_key(path) and bool(key_in(headers))

    def _knows_host(self, exchange: Exchange) -> bool:
        host = exchange.headers.get("host", "")
        if not host or exchange.path in _HEALTH:
            return True  # every browser sends a Host
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if is_local(host) or name.lower() in self._names:
            if len(self._hosts) < MOST_HOSTS:
                self._hosts.add(host)
            return True
        _refuse(
            exchange, f"this is not {host[:256]!r}: ask for 127.0.0.1 or localhost, or add the name to listen.names"
        )
        return False

    def _is_public(self, exchange: Exchange) -> bool:
        """Whether the path changes nothing, and reveals only what any client may know."""
        path = exchange.path
        return exchange.method in _LOOKING and (path in _PUBLIC or path.startswith("/page/"))

    def _brings_key(self, exchange: Exchange) -> bool:
        """Whether the path asks for a key, and the page sends one. A cookie, or the password of a proxy in front, which
        a browser adds by itself, does not count."""
        headers = exchange.headers
        if not self._asks_for_key(exchange.path):
            return False
        if "authorization" in headers or "x-api-key" in headers:
            return bool(key_in(headers))
        return exchange.method == "GET" and bool(key_offered(headers.get("sec-websocket-protocol", "")))

    def _asks_for_key(self, path: str) -> bool:
        asks_clients = self._clients_have_keys and path.startswith("/v1/")
        return asks_clients or (self._admins_have_keys and path.startswith("/admin/"))

    # -- pages that are allowed --------------------------------------------------------------------------------

    def _allows(self, origin: str) -> bool:
        return ANY in self._origins or origin.lower() in self._origins

    def _speak_to(self, exchange: Exchange, origin: str) -> None:
        told = ANY if ANY in self._origins else origin
        exchange.say_with_answer(
            (("access-control-allow-origin", told), ("access-control-expose-headers", EXPOSED), ("vary", "origin"))
        )

    def _let_in_from(self, exchange: Exchange, origin: str) -> bool:
        self._speak_to(exchange, origin)
        if exchange.method != "OPTIONS":
            return True
        headers = exchange.headers
        allowed: list[tuple[str, str]] = [
            ("access-control-allow-methods", "GET, POST, DELETE"),
            # Any header it asks for: none gives a page more than other clients have.
            (
                "access-control-allow-headers",
                headers.get("access-control-request-headers", "authorization, content-type"),
            ),
            ("access-control-max-age", str(PREFLIGHT_KEPT_S)),
        ]
        if headers.get("access-control-request-private-network") == "true":
            allowed.append(("access-control-allow-private-network", "true"))
        exchange.respond(200, b"", "text/plain", tuple(allowed))
        return False


def _refuse(exchange: Exchange, message: str, headers: Headers = ()) -> None:
    exchange.respond(403, refusal_body(403, message), headers=headers)
