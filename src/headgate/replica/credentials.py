"""Holds what a replica requires: an API key, further headers, and the CA that signs its certificate.

They go with everything that the replica is asked: requests, probes, warm-ups, metrics. The key is read from its file
when the replica joins, when the config is read again, and after the replica has refused it, so that a key can be
replaced while the gateway runs. The key is never shown: not in logs, not by the admin API, not in descriptions of the
config.
"""

import ssl
from pathlib import Path
from typing import Final

from headgate.model.errors import UsageError
from headgate.model.replica import Replica

LONGEST_KEY: Final = 4096
"""Maximum bytes of a key; a longer file is taken for something else."""
LEAST_SECRET: Final = 6
"""Minimum bytes of a secret to hide: a shorter text occurs in many others."""


class Credentials:
    def __init__(self, replica: Replica) -> None:
        """Raises StartupError where a file can't be used."""
        self._replica = replica
        self.tls: ssl.SSLContext | None = _trusting(replica)
        """None: the CAs that the system trusts."""
        self.lines = self._read()
        """Header lines for everything that is sent there."""

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """The values in those lines, longest first; for `Bearer KEY`, the key."""
        values = [line.partition(b": ")[2].removeprefix(b"Bearer ") for line in self.lines.split(b"\r\n") if line]
        return tuple(sorted([value for value in values if len(value) >= LEAST_SECRET], key=len, reverse=True))

    def read_again(self) -> None:
        """Reads the key again. Raises StartupError, and the old key stays."""
        self.lines = self._read()

    def _read(self) -> bytes:
        headers = [f"{name}: {value}\r\n" for name, value in self._replica.headers.items()]
        if self._replica.api_key_file is not None:
            headers.append(f"authorization: Bearer {key_in(self._replica.api_key_file, self._replica.id)}\r\n")
        return "".join(headers).encode("latin-1")


def key_in(path: Path, replica_id: str) -> str:
    """Raises StartupError, which quotes nothing from the file."""
    try:
        with path.open("rb") as file:
            key = file.read(LONGEST_KEY + 1).strip()
    except OSError as error:
        raise UsageError(
            f"replica {replica_id}: can't read its api_key_file {path}: {error.strerror or error}"
        ) from None
    if not 0 < len(key) <= LONGEST_KEY or any(not 0x21 <= byte <= 0x7E for byte in key):
        what = f"expected one key of printable ASCII, without spaces, at most {LONGEST_KEY} bytes"
        raise UsageError(f"replica {replica_id}: api_key_file {path}: {what}")
    return key.decode("ascii")


def _trusting(replica: Replica) -> ssl.SSLContext | None:
    if replica.ca is None:
        return None
    try:
        return ssl.create_default_context(cafile=replica.ca)
    except (OSError, ssl.SSLError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it holds no certificate in PEM"
        raise UsageError(f"replica {replica.id}: can't use its ca {replica.ca}: {why}") from None
