"""Adds `headgate key`, which makes an API key, and the hash of it that a config holds."""

import getpass
import hashlib
import json as json_text
import secrets
import sys
from typing import Annotated

from cyclopts import App, Parameter

from headgate.cli.setup.groups import RUN
from headgate.model.errors import UsageError

PREFIX = "hg-"
RANDOM_BYTES = 32


def add_to(app: App) -> None:
    app.command(key, group=RUN)


def new_key() -> str:
    return PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


def hash_of(api_key: str) -> str:
    return hashlib.sha256(api_key.encode("utf-8", "surrogateescape")).hexdigest()


def key(
    *,
    hash: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Make an API key for a client, and the hash of it for the config. The key is shown this once.

    Parameters
    ----------
    hash
        Hash a key that you have already, from standard input, and make none.
    json
        Print both as JSON.
    """
    api_key = _given() if hash else new_key()
    digest = hash_of(api_key)
    if json:
        print(json_text.dumps({"key_sha256": digest} if hash else {"key": api_key, "key_sha256": digest}))
    elif hash:
        print(digest)
    else:
        print(f"key     {api_key}")
        print(f"hash    {digest}")
        print("The key is for the client and shown this once. The hash is for the config:")
        print(f'tenants: {{NAME: {{key_sha256: ["{digest}"]}}}}   # or under admin_keys')


def _given() -> str:
    """The key on standard input: typed unseen at a terminal, else the first line."""
    text = getpass.getpass("Key: ") if sys.stdin.isatty() else sys.stdin.readline()
    api_key = text.strip()
    if not api_key:
        raise UsageError('there is no key on standard input: printf %s "$KEY" | headgate key --hash')
    if not api_key.isascii() or not api_key.isprintable() or " " in api_key:
        raise UsageError("a key has no spaces and no letters beyond ASCII")
    return api_key
