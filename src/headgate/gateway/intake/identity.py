"""Who asks? Keys are known only by their SHA-256."""

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
        """Nobody is served without a key."""
        return not self._anonymous.allowed

    @property
    def several(self) -> bool:
        """Some tenants have keys."""
        return bool(self._by_digest)

    def of(self, headers: dict[str, str]) -> Tenant:
        """Raises Unauthorized. A wrong key is one even where none is needed: the client believes it is somebody."""
        key = key_in(headers)
        if key and self._by_digest:
            # Looked up by digest: how long that takes depends on the digest, from which nobody gets back to the key.
            tenant = self._by_digest.get(hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest())
            if tenant is None or not tenant.allowed:
                raise Unauthorized("this API key is not known here")
            return tenant
        if not self._anonymous.allowed:
            raise Unauthorized("an API key is needed: send it as 'Authorization: Bearer KEY'")
        return self._anonymous
