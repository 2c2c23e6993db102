"""Keeps the rows of files: who has which, for how long, and how much a tenant has in all.

Every question names a tenant, and another tenant's file is not there for it.
"""

import sqlite3
from pathlib import Path
from typing import Any, Final, NamedTuple

from headgate.batches.forms.formats import OVER
from headgate.batches.store import BatchStore, Row, StorageTrouble, troubled
from headgate.config.batches import BatchesConfig

DAY_S: Final = 86_400
STRAY_S: Final = 86_400.0
"""Seconds after which content without a row is removed: no upload takes as long."""
_OVER: Final = ", ".join(f"'{status}'" for status in sorted(OVER))


class Held(NamedTuple):
    """What a tenant has."""

    files: int
    bytes: int


class InUse(Exception):
    """The file is the input of a batch that is not over."""


class Shelf:
    def __init__(self, store: BatchStore, config: BatchesConfig) -> None:
        self._store = store
        self._config = config

    def held(self, tenant: str) -> Held:
        """What counts for the tenant's quotas: its uploads, and not what batches made of them."""
        row = self._store.one(
            "SELECT COUNT(*) AS files, COALESCE(SUM(bytes), 0) AS bytes FROM files"
            " WHERE tenant = ? AND purpose = 'batch'",
            tenant,
        )
        assert row is not None
        return Held(row["files"], row["bytes"])

    def add(self, file_id: str, tenant: str, filename: str, size: int, now: float) -> Row:
        """Keeps a file whose part has been written and synced."""
        self._store.keep(file_id)
        with self._store.writing() as database:
            insert_file(database, file_id, tenant, filename, "batch", size, now, self._config.keep_days)
        row = self.get(tenant, file_id)
        assert row is not None
        return row

    def get(self, tenant: str, file_id: str) -> Row | None:
        return self._store.one("SELECT * FROM files WHERE id = ? AND tenant = ?", file_id, tenant)

    def page(
        self, tenant: str, after: str | None, limit: int, purpose: str | None, *, newest_first: bool
    ) -> tuple[list[Row], bool]:
        """Up to `limit` files that follow `after` (None: the first), and whether there are more. Raises KeyError for
        an unknown `after`."""
        edge = edge_of(None if after is None else self.get(tenant, after), after, newest_first=newest_first)
        order, beyond = ("DESC", "<") if newest_first else ("ASC", ">")
        rows = self._store.all(
            f"SELECT * FROM files WHERE tenant = ? AND seq {beyond} ? AND (? IS NULL OR purpose = ?)"
            f" ORDER BY seq {order} LIMIT ?",
            tenant, edge, purpose, purpose, limit + 1,
        )  # fmt: skip
        return rows[:limit], len(rows) > limit

    def delete(self, tenant: str, file_id: str) -> bool:
        """Whether there was such a file. Raises InUse."""
        with self._store.writing() as database:
            used = database.execute(
                f"SELECT id FROM batches WHERE input_file_id = ? AND tenant = ? AND status NOT IN ({_OVER})",
                (file_id, tenant),
            ).fetchone()
            if used is not None:
                raise InUse(used["id"])
            gone = database.execute("DELETE FROM files WHERE id = ? AND tenant = ?", (file_id, tenant)).rowcount
        if gone:
            self.forget(file_id)
        return gone > 0

    def forget(self, file_id: str) -> None:
        """Removes the content of a file that has no row any more. Content that can't be removed is tried again when
        strays are."""
        try:
            with troubled(self._store.folder):
                self._store.discard(file_id)
        except StorageTrouble:
            return

    def sweep(self, now: float) -> int:
        """Removes what has expired, and content without a row. Returns how many files were removed."""
        with self._store.writing() as database:
            found = database.execute(
                f"SELECT id FROM files WHERE expires_at <= ? AND id NOT IN"
                f" (SELECT input_file_id FROM batches WHERE status NOT IN ({_OVER}))",
                (now,),
            ).fetchall()
            database.executemany("DELETE FROM files WHERE id = ?", [(row["id"],) for row in found])
            old = now - self._config.keep_days * DAY_S
            database.execute(f"DELETE FROM batches WHERE created_at <= ? AND status IN ({_OVER})", (old,))
        for row in found:
            self.forget(row["id"])
        return len(found) + self._sweep_strays(now)

    def _sweep_strays(self, now: float) -> int:
        known = {row["id"] for row in self._store.all("SELECT id FROM files")}
        gone = 0
        with troubled(self._store.folder):
            for path in self._store.files.iterdir():
                if path.name not in known and _age_s(path, now) > STRAY_S:
                    path.unlink(missing_ok=True)
                    gone += 1
        return gone


def insert_file(
    database: sqlite3.Connection,
    file_id: str,
    tenant: str,
    filename: str,
    purpose: str,
    size: int,
    now: float,
    days: int,
) -> None:
    database.execute(
        "INSERT OR REPLACE INTO files (id, tenant, filename, purpose, bytes, created_at, expires_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (file_id, tenant, filename, purpose, size, int(now), int(now) + days * DAY_S),
    )


def edge_of(row: Any, after: str | None, *, newest_first: bool) -> int:
    """The place in the order behind which a page begins. Raises KeyError for an `after` that is not there."""
    if after is None:
        return (1 << 62) if newest_first else 0
    if row is None:
        raise KeyError(after)
    return int(row["seq"])


def _age_s(path: Path, now: float) -> float:
    try:
        return now - path.stat().st_mtime
    except OSError:
        return 0.0
