"""Does a web page ask that has no business here?

Browsers let any page open a WebSocket to anywhere, also to this machine, and say only whose page it is. Where no key is
needed, that is all there is to go by. Whoever is no browser says nothing, and is not meant.
"""

from ipaddress import ip_address
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


def is_foreign(headers: dict[str, str], *, loopback_only: bool) -> bool:
    """`loopback_only`: only this machine is listened to, so a page that knows us by another name had that name pointed
    here (or comes through a proxy, which should ask for a key)."""
    origin = headers.get("origin")
    if origin is None:
        return False
    try:
        page = urlsplit(origin)
        port = _PORTS[page.scheme]
        here = urlsplit(f"//{headers.get('host', '')}")
        same = (page.hostname, page.port or port) == (here.hostname, here.port or port)
    except (KeyError, ValueError):  # `null`, among others: a file, a frame that was locked up
        return True
    return not same or (loopback_only and not _is_local(here.hostname or ""))


def _is_local(name: str) -> bool:
    try:
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False
