"""Keys as the config file has them."""

from hashlib import sha256


def hash_key(key: str) -> str:
    return sha256(key.encode()).hexdigest()
