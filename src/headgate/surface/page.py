"""Serves the page at `/`: a few plain files, read once, with an ETag made from their content.

The files hold no figures. Figures come from /admin, which asks for a key where one is needed; so the files themselves
need none.
"""

from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files

from headgate.wire.errors import refusal_body
from headgate.wire.exchange import Exchange
from headgate.wire.router import Routes

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
HEADERS = (
    # Only this gateway's own files, no inline script or style, and no page may frame this one.
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-cache"),  # cached, and validated each time: an upgraded gateway shows its own page
)


@dataclass(frozen=True, slots=True)
class File:
    content: bytes
    content_type: str
    etag: str


class Page:
    def __init__(self) -> None:
        self._files: dict[str, File] = {}
        for file in files("headgate.surface").joinpath("page").iterdir():
            kind = TYPES.get(file.name.rpartition(".")[2])
            if kind is not None:
                content = file.read_bytes()
                self._files[file.name] = File(content, kind, f'"{sha256(content).hexdigest()[:16]}"')

    def routes(self) -> Routes:
        return {("GET", "/"): self._index, ("GET", "/page/*"): self._part}

    def _index(self, exchange: Exchange) -> None:
        _send(exchange, self._files["index.html"])

    def _part(self, exchange: Exchange) -> None:
        file = self._files.get(exchange.path.removeprefix("/page/"))
        if file is None:
            exchange.respond(404, refusal_body(404, f"no such path: {exchange.path[:256]}"))
        else:
            _send(exchange, file)


def _send(exchange: Exchange, file: File) -> None:
    headers = (*HEADERS, ("etag", file.etag))
    known = [tag.strip().removeprefix("W/") for tag in exchange.headers.get("if-none-match", "").split(",")]
    if file.etag in known:
        exchange.respond(304, b"", file.content_type, headers)
    else:
        exchange.respond(200, file.content, file.content_type, headers)
