"""Finds the tenant of a request by its API key. Only the SHA-256 of a key is stored."""

import hashlib

from headgate.config.gateway import Tenant
from headgate.model.errors import Unauthorized
from headgate.wire.origin import key_in


class Identities:
    def __init__(self, tenants: tuple[Tenant, ...], anonymous: Tenant) -> None:
        self._by_digest = {bytes.fromhex(key): tenant for tenant in tenants for key in tenant.key_sha256}
        self._anonymous = anonymous

    @property
    def keyed(self) -> bool:
        """Whether a key is needed for every request."""
        return not self._anonymous.allowed

    @property
    def several(self) -> bool:
        """Whether any tenant has keys."""
        return bool(self._by_digest)

    def of(self, headers: dict[str, str]) -> Tenant:
        """The tenant of a request. Raises Unauthorized if a needed key is missing, and for an unknown key wherever
        tenants have keys, even if none is needed: its client expects to be served as a tenant."""
        key = key_in(headers)
        if key and self._by_digest:
            # Looked up by digest: the time depends on the digest only, which does not reveal the key.
            tenant = self._by_digest.get(hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest())
            if tenant is None or not tenant.allowed:
                raise Unauthorized("this API key is not known here")
            return tenant
        if not self._anonymous.allowed:
            raise Unauthorized("an API key is needed: send it as 'Authorization: Bearer KEY'")
        return self._anonymous
