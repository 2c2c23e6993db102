"""Decides which clients may use /admin. Admin keys are known only by their SHA-256.

Open mode: while neither a tenant nor an admin has a key, and only this machine is listened to, its clients need no key.
The first tenant's key ends open mode: keys are given out where clients come from elsewhere, and then through a proxy on
this machine, which looks like a client of this machine: nginx's plain `proxy_pass` adds no header that tells.
"""

import hashlib

from headgate.model.errors import Unauthorized
from headgate.wire.errors import refusal_body
from headgate.wire.exchange import Exchange, Handler
from headgate.wire.origin import is_local

_FORWARDED = (
    "forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip", "fly-client-ip",
    "x-cluster-client-ip", "x-original-host", "x-envoy-external-address",
)  # fmt: skip
"""Headers that proxies add, beside those that begin with x-forwarded."""


MOST_BODY_BYTES = 256 * 1024
"""Maximum body of a request to /admin: a change is parsed as the config file is, while requests wait."""


class AdminAccess:
    def __init__(self, admin_keys: tuple[str, ...], *, loopback_only: bool, tenants_have_keys: bool = False) -> None:
        self._loopback_only = loopback_only
        self.change(admin_keys, tenants_have_keys=tenants_have_keys)

    def change(self, admin_keys: tuple[str, ...], *, tenants_have_keys: bool = False) -> None:
        """Accepts these keys and no others from now on."""
        self._digests = frozenset(bytes.fromhex(key) for key in admin_keys)
        self.is_open = self._loopback_only and not admin_keys and not tenants_have_keys
        """Whether clients on this machine need no key."""

    def guard(self, handler: Handler) -> Handler:
        def guarded(exchange: Exchange) -> None:
            self.check(exchange.headers)
            # Without a content type any web page can send a POST, and its browser sends no CORS preflight.
            if self.is_open and exchange.method == "POST" and "content-type" not in exchange.headers:
                message = "content-type must be application/json, also without a body"
                exchange.respond(415, refusal_body(415, message))
            elif len(exchange.body) > MOST_BODY_BYTES:
                exchange.respond(413, refusal_body(413, f"body exceeds the {MOST_BODY_BYTES} bytes that /admin takes"))
            else:
                handler(exchange)

        return guarded

    def check(self, headers: dict[str, str]) -> None:
        """Raises Unauthorized unless a client with these headers may use /admin."""
        if self.is_open:
            # A proxy on this machine, or a web page whose name was pointed here, speaks for a client from elsewhere.
            if not is_local(headers.get("host", "")) or _is_forwarded(headers):
                raise Unauthorized("from another machine an admin key is needed: put its SHA-256 into admin_keys")
            return
        given = headers.get("authorization", "")
        key = given[7:].strip() if given[:7].lower() == "bearer " else headers.get("x-api-key", "")
        if not key:
            where = (
                "Authorization: Bearer KEY"
                if self._digests
                else "there is none yet; put the SHA-256 of one into admin_keys"
            )
            raise Unauthorized(f"an admin key is needed: {where}")
        # Looked up by digest: the time taken depends on the digest, from which the key can't be derived.
        if hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest() not in self._digests:
            raise Unauthorized("this is no admin key of this gateway")


def _is_forwarded(headers: dict[str, str]) -> bool:
    return any(name in headers for name in _FORWARDED) or any(name.startswith("x-forwarded") for name in headers)
