"""Who may look inside? Admin keys, known only by their SHA-256."""

import hashlib
from ipaddress import ip_address
from urllib.parse import urlsplit

from headgate.model.errors import Unauthorized
from headgate.wire.exchange import Exchange, Handler

_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")


class Access:
    def __init__(self, admin_keys: tuple[str, ...], *, loopback_only: bool) -> None:
        """Without a key, only somebody on this machine may, and only while the gateway listens to nobody else."""
        self._loopback_only = loopback_only
        self.change(admin_keys)

    def change(self, admin_keys: tuple[str, ...]) -> None:
        """From now on these keys and no others."""
        self._digests = frozenset(bytes.fromhex(key) for key in admin_keys)
        self._open = self._loopback_only and not admin_keys

    def guard(self, handler: Handler) -> Handler:
        def guarded(exchange: Exchange) -> None:
            self.check(exchange.headers)
            handler(exchange)

        return guarded

    def check(self, headers: dict[str, str]) -> None:
        """Raises Unauthorized."""
        if self._open:
            # A proxy on this machine, or a web page whose name was pointed here, speaks for somebody from elsewhere.
            if not _is_local(headers.get("host", "")) or any(name in headers for name in _FORWARDED):
                raise Unauthorized("from another machine an admin key is needed: put its SHA-256 into admin_keys")
            return
        given = headers.get("authorization", "")
        key = given[7:].strip() if given[:7].lower() == "bearer " else headers.get("x-api-key", "")
        if not key:
            where = (
                "Authorization: Bearer KEY" if self._digests else "one whose SHA-256 is in admin_keys; there is none"
            )
            raise Unauthorized(f"an admin key is needed: {where}")
        # Looked up by digest: how long that takes depends on the digest, from which nobody gets back to the key.
        if hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest() not in self._digests:
            raise Unauthorized("this is no admin key of this gateway")


def _is_local(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False
