"""Keeps batches and files in SQLite, and the files' content in a folder beside it.

What a client is told has been written: uploads are synced before their row is committed, and every commit is synced.
All of it is called on the store's one thread (desk.py). Several gateways of one machine may share a folder: each
statement sees what the others committed, and `lock` says which of them runs the batches.
"""

import errno
import fcntl
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

VERSION: Final = 1
PATIENCE_S: Final = 10.0
"""Seconds for which a commit waits for another gateway's."""

SCHEMA: Final = """
CREATE TABLE files (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
);
CREATE INDEX files_of ON files (tenant, seq);
CREATE TABLE batches (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    window TEXT NOT NULL,
    input_file_id TEXT NOT NULL,
    status TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    in_progress_at INTEGER,
    finalizing_at INTEGER,
    completed_at INTEGER,
    failed_at INTEGER,
    expired_at INTEGER,
    cancelling_at INTEGER,
    cancelled_at INTEGER,
    total INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    cached_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    model TEXT,
    metadata BLOB,
    errors BLOB,
    output_file_id TEXT,
    error_file_id TEXT
);
CREATE INDEX batches_of ON batches (tenant, seq);
CREATE INDEX batches_open ON batches (status) WHERE status NOT IN ('completed', 'failed', 'expired', 'cancelled');
CREATE TABLE lines (
    batch INTEGER NOT NULL,
    number INTEGER NOT NULL,
    custom_id TEXT,
    begin INTEGER NOT NULL,
    size INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    over INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (batch, number)
) WITHOUT ROWID;
CREATE INDEX lines_open ON lines (batch, number) WHERE over = 0;
CREATE TABLE results (
    batch INTEGER NOT NULL,
    number INTEGER NOT NULL,
    good INTEGER NOT NULL,
    line BLOB NOT NULL,
    UNIQUE (batch, number)
);
"""


Row = dict[str, Any]
"""A row of a table, by column."""


class StorageTrouble(Exception):
    """The folder or its database can't be read or written: a full disk, a lost mount, a lack of permission."""


class BatchStore:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = folder / "files"
        self._database: sqlite3.Connection | None = None
        self._lock: IO[bytes] | None = None

    # -- opening -------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Makes the folder where there is none. Raises StorageTrouble."""
        with troubled(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.files.mkdir(exist_ok=True, mode=0o700)
            database = sqlite3.connect(
                self.folder / "batches.db", timeout=PATIENCE_S, isolation_level=None, check_same_thread=False
            )
            try:
                database.row_factory = _as_dict
                database.execute("PRAGMA journal_mode = WAL")
                database.execute("PRAGMA synchronous = FULL")
                self._prepare(database)
            except BaseException:
                database.close()
                raise
            self._database = database

    def _prepare(self, database: sqlite3.Connection) -> None:
        version = database.execute("PRAGMA user_version").fetchone()["user_version"]
        if version == 0:
            database.executescript(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
        elif version != VERSION:
            raise StorageTrouble(
                f"{self.folder} was written by another version of Headgate (format {version}, not {VERSION}): name "
                "another folder (batches.folder)"
            )

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
        self.unlock()

    def lock(self) -> bool:
        """Whether this process is the one that runs the batches of this folder; asks again each time until it is."""
        if self._lock is not None:
            return True
        with troubled(self.folder):
            file = open(self.folder / "lock", "ab")  # noqa: SIM115
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                return False
            self._lock = file
            return True

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # -- rows ----------------------------------------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Raises StorageTrouble."""
        if self._database is None:
            raise StorageTrouble(f"{self.folder} is not open")
        with troubled(self.folder):
            yield self._database

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it is on disk when this returns, or none of it. Raises StorageTrouble."""
        with self.reading() as database:
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
                database.execute("COMMIT")
            except BaseException:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise

    def one(self, query: str, *values: Any) -> Row | None:
        with self.reading() as database:
            row: Row | None = database.execute(query, values).fetchone()
            return row

    def all(self, query: str, *values: Any) -> list[Row]:
        with self.reading() as database:
            return database.execute(query, values).fetchall()

    # -- content -------------------------------------------------------------------------------------------------

    def path(self, file_id: str) -> Path:
        return self.files / file_id

    def part(self, file_id: str) -> Path:
        """Where a file is written before it is complete."""
        return self.files / f"{file_id}.part"

    def keep(self, file_id: str) -> None:
        """Makes a file that was written and synced one that lasts. Raises StorageTrouble."""
        with troubled(self.folder):
            os.replace(self.part(file_id), self.path(file_id))
            sync_folder(self.files)

    def write_part(self, file_id: str, pieces: Iterator[bytes]) -> int:
        """Writes and syncs a file that is not kept yet; returns its bytes. Raises StorageTrouble."""
        with troubled(self.folder), open(self.part(file_id), "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    def discard(self, file_id: str) -> None:
        """Removes a file's content, if there is any."""
        for path in (self.path(file_id), self.part(file_id)):
            path.unlink(missing_ok=True)


def _as_dict(cursor: sqlite3.Cursor, values: tuple[Any, ...]) -> Row:
    return {column[0]: value for column, value in zip(cursor.description, values, strict=True)}


@contextmanager
def troubled(folder: Path) -> Iterator[None]:
    """Raises StorageTrouble for what goes wrong on the disk."""
    try:
        yield
    except sqlite3.Error as error:
        raise StorageTrouble(_why(folder, str(error))) from error
    except OSError as error:
        raise StorageTrouble(_why(folder, error.strerror or str(error), error.errno)) from error


def _why(folder: Path, said: str, number: int | None = None) -> str:
    if number in (errno.ENOSPC, errno.EDQUOT) or "disk is full" in said:
        return f"no space is left in the folder of batches, {folder}: free some, or name another (batches.folder)"
    if number in (errno.EROFS, errno.EACCES, errno.EPERM) or "readonly" in said or "unable to open" in said:
        what = "make it writable, or name another (batches.folder)"
        return f"the folder of batches, {folder}, can't be written: {said}; {what}"
    return f"the folder of batches, {folder}, can't be used: {said}"


def sync_folder(folder: Path) -> None:
    """Makes what was renamed in the folder last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)
