"""Judges a request for a WebSocket, and writes the head of the answer that opens it (RFC 6455, section 4)."""

import base64
from typing import NamedTuple

from websockets.utils import accept_key

from headgate.wire.errors import Headers
from headgate.wire.exchange import Exchange


class UpgradeRefusal(NamedTuple):
    status: int
    message: str
    headers: Headers


def refusal(exchange: Exchange) -> UpgradeRefusal | None:
    """Why this is no request for a WebSocket; None: it is one."""
    headers = exchange.headers
    if exchange.method != "GET" or not _says(headers, "upgrade", "websocket") or exchange.http10:
        asked = (("upgrade", "websocket"), ("connection", "upgrade"))
        return UpgradeRefusal(426, "a GET here opens a WebSocket: Upgrade: websocket; or send a POST", asked)
    if not _says(headers, "connection", "upgrade"):
        return UpgradeRefusal(400, "no Connection: Upgrade", ())
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        return UpgradeRefusal(400, "the request for a WebSocket has a body", ())
    if headers.get("sec-websocket-version") != "13":
        return UpgradeRefusal(
            426, "only version 13 of the WebSocket protocol is spoken", (("sec-websocket-version", "13"),)
        )
    try:
        key = base64.b64decode(headers.get("sec-websocket-key", ""), validate=True)
    except ValueError:
        key = b""
    return None if len(key) == 16 else UpgradeRefusal(400, "Sec-WebSocket-Key is not 16 bytes in base64", ())


def accept_head(exchange: Exchange, subprotocol: str | None) -> bytes:
    """The head of the answer that opens the WebSocket."""
    accepted = accept_key(exchange.headers["sec-websocket-key"])
    head = "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
    head += f"sec-websocket-accept: {accepted}\r\n"
    if subprotocol is not None:
        head += f"sec-websocket-protocol: {subprotocol}\r\n"
    return f"{head}\r\n".encode()


def _says(headers: dict[str, str], name: str, token: str) -> bool:
    return token in [each.strip().lower() for each in headers.get(name, "").split(",")]
