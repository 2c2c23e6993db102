"""Keeps the rows of batches, their lines and results. Each change is one transaction, so that a batch whose gateway is
killed at any moment goes on where it was.

    validating → in_progress → finalizing → completed, expired
              ↘ failed        ↘ cancelling → cancelled

A line is over once its result is committed, in the same transaction as the batch's counts. The result's row is unique,
so that no line has two. The result files are written from these rows; until the batch's last status is committed they
are written anew after a restart, under the same ids.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from headgate.batches.forms.formats import CANCELLED, EXPIRED, MOST_NAMED, OVER, failed_line, named_flaw
from headgate.batches.forms.lines import InputLine, LineSplitter, read_line
from headgate.batches.shelf import edge_of, insert_file
from headgate.batches.store import BatchStore, Row, new_id, troubled
from headgate.config.batches import BatchesConfig

READ_BYTES: Final = 1 << 20
PIECE: Final = 500
"""Lines or results of one turn on the store's thread."""
_encode = msgspec.json.Encoder().encode
_OVER: Final = ", ".join(f"'{status}'" for status in sorted(OVER))


class Result(NamedTuple):
    number: int
    good: bool
    """Whether the line was answered with a 200: its result is in the output file, all others in the error file."""
    line: bytes
    tokens: tuple[int, int, int] = (0, 0, 0)
    """Input, cached and output tokens."""


class Waiting(NamedTuple):
    """A line that has no result yet."""

    number: int
    custom_id: str
    attempts: int
    data: bytes
    """The line, as the client wrote it."""


class TooManyLines(Exception):
    """The input file has more lines than a batch may have."""


class MissingInput(Exception):
    """The content of the input file is not there."""


class Jobs:
    def __init__(self, store: BatchStore, config: BatchesConfig) -> None:
        self._store = store
        self._config = config

    # -- what clients ask -----------------------------------------------------------------------------------------

    def create(
        self, tenant: str, endpoint: str, window: str, input_file_id: str, metadata: dict[str, str] | None, now: float
    ) -> Row:
        batch_id = new_id("batch_")
        with self._store.writing() as database:
            database.execute(
                "INSERT INTO batches (id, tenant, endpoint, window, input_file_id, status, created_at, expires_at,"
                " metadata) VALUES (?, ?, ?, ?, ?, 'validating', ?, ?, ?)",
                (
                    batch_id, tenant, endpoint, window, input_file_id, int(now), int(now + self._config.window_s),
                    _encode(metadata) if metadata else None,
                ),
            )  # fmt: skip
        row = self.get(tenant, batch_id)
        assert row is not None
        return row

    def get(self, tenant: str | None, batch_id: str) -> Row | None:
        """`tenant` None: any tenant's, for operators."""
        return self._store.one(
            "SELECT * FROM batches WHERE id = ? AND (? IS NULL OR tenant = ?)", batch_id, tenant, tenant
        )

    def page(self, tenant: str | None, after: str | None, limit: int) -> tuple[list[Row], bool]:
        """Up to `limit` batches, the newest first, that follow `after`, and whether there are more. Raises KeyError
        for an unknown `after`."""
        edge = edge_of(None if after is None else self.get(tenant, after), after, newest_first=True)
        rows = self._store.all(
            "SELECT * FROM batches WHERE (? IS NULL OR tenant = ?) AND seq < ? ORDER BY seq DESC LIMIT ?",
            tenant, tenant, edge, limit + 1,
        )  # fmt: skip
        return rows[:limit], len(rows) > limit

    def open_count(self, tenant: str) -> int:
        row = self._store.one(
            f"SELECT COUNT(*) AS number FROM batches WHERE tenant = ? AND status NOT IN ({_OVER})", tenant
        )
        assert row is not None
        return int(row["number"])

    def cancel(self, tenant: str | None, batch_id: str, now: float) -> Row | None:
        """The batch afterwards; one that is over, or is being finalized, stays as it is. None: there is none."""
        with self._store.writing() as database:
            database.execute(
                "UPDATE batches SET status = 'cancelling', cancelling_at = ? WHERE id = ? AND (? IS NULL OR tenant = ?)"
                " AND status IN ('validating', 'in_progress')",
                (int(now), batch_id, tenant, tenant),
            )
        return self.get(tenant, batch_id)

    # -- what the runner does -------------------------------------------------------------------------------------

    def open_batches(self) -> list[Row]:
        """Batches that are not over, the oldest first."""
        return self._store.all(f"SELECT * FROM batches WHERE status NOT IN ({_OVER}) ORDER BY seq")

    def validating(self, batch: Row, now: Callable[[], float]) -> Iterator[None]:
        """Reads the input file in pieces, and ends with the batch in progress, or failed. Begins anew where an earlier
        attempt was cut off."""
        seq = batch["seq"]
        with self._store.writing() as database:
            for table in ("lines", "results"):
                database.execute(f"DELETE FROM {table} WHERE batch = ?", (seq,))
        flaws: list[dict[str, Any]] = []
        good = bad = 0
        model = ""
        try:
            for lines in self._read(batch):
                self._take(seq, batch["id"], lines)
                flawed = [line for line in lines if line.flaw]
                flaws += [named_flaw(line) for line in flawed[: MOST_NAMED - len(flaws)]]
                bad += len(flawed)
                good += len(lines) - len(flawed)
                model = model or next((line.model for line in lines if line.model), "")
                yield
        except MissingInput as missing:
            self._fail(seq, "input_file_missing", str(missing), now())
            return
        except TooManyLines as many:
            self._fail(seq, "too_many_lines", str(many), now())
            return
        if not good:
            why = "no line of the input file can be served" if bad else "the input file has no lines"
            flaws = flaws or [{"code": "empty_file", "line": None, "message": why, "param": "input_file_id"}]
            self._fail_with(seq, flaws, now(), total=bad)
            return
        with self._store.writing() as database:
            database.execute(
                "UPDATE batches SET status = CASE status WHEN 'validating' THEN 'in_progress' ELSE status END,"
                " in_progress_at = ?, total = ?, failed = ?, errors = ?, model = ? WHERE seq = ?",
                (int(now()), good + bad, bad, _encode(flaws) if flaws else None, model or None, seq),
            )

    def _read(self, batch: Row) -> Iterator[list[InputLine]]:
        splitter, seen, count, lines = LineSplitter(), set[str](), 0, list[InputLine]()
        try:
            file = open(self._store.path(batch["input_file_id"]), "rb")  # noqa: SIM115
        except FileNotFoundError:
            raise MissingInput(f"the content of file {batch['input_file_id']} is not there any more") from None
        except OSError as error:
            with troubled(self._store.folder):
                raise error
        with file:
            last = False
            while not last:
                with troubled(self._store.folder):
                    piece = file.read(READ_BYTES)
                last = not piece
                for number, begin, data in splitter.feed(piece, last=last):
                    count += 1
                    if count > self._config.lines:
                        raise TooManyLines(f"the input file has more than {self._config.lines} lines")
                    lines.append(read_line(data, number, begin, batch["endpoint"], seen))
                    if len(lines) >= PIECE:
                        yield lines
                        lines = []
        if lines:
            yield lines

    def _take(self, seq: int, batch_id: str, lines: Sequence[InputLine]) -> None:
        with self._store.writing() as database:
            database.executemany(
                "INSERT INTO lines (batch, number, custom_id, begin, size, over) VALUES (?, ?, ?, ?, ?, ?)",
                [(seq, line.number, line.custom_id, line.begin, line.size, bool(line.flaw)) for line in lines],
            )
            database.executemany(
                "INSERT INTO results (batch, number, good, line) VALUES (?, ?, 0, ?)",
                [
                    (seq, line.number, _flawed(batch_id, line))
                    for line in lines
                    if line.flaw
                ],
            )  # fmt: skip

    def _fail(self, seq: int, code: str, message: str, now: float) -> None:
        self._fail_with(seq, [{"code": code, "line": None, "message": message, "param": "input_file_id"}], now)

    def _fail_with(self, seq: int, flaws: list[dict[str, Any]], now: float, total: int = 0) -> None:
        with self._store.writing() as database:
            for table in ("lines", "results"):
                database.execute(f"DELETE FROM {table} WHERE batch = ?", (seq,))
            database.execute(
                "UPDATE batches SET status = 'failed', failed_at = ?, errors = ?, total = ?, failed = ? WHERE seq = ?",
                (int(now), _encode(flaws), total, total, seq),
            )

    def waiting(self, batch: Row, after: int, most: int, most_bytes: int) -> list[Waiting]:
        """Lines without a result, from `after` on, in order: at most `most` lines and `most_bytes` bytes, and at least
        one if there is any. Raises MissingInput."""
        rows = self._store.all(
            "SELECT number, custom_id, begin, size, attempts FROM lines WHERE batch = ? AND over = 0 AND number > ?"
            " ORDER BY number LIMIT ?",
            batch["seq"], after, most,
        )  # fmt: skip
        return self._with_data(batch, rows, most_bytes) if rows else []

    def line(self, batch: Row, number: int) -> list[Waiting]:
        """One line again; empty: it is over."""
        rows = self._store.all(
            "SELECT number, custom_id, begin, size, attempts FROM lines WHERE batch = ? AND number = ? AND over = 0",
            batch["seq"], number,
        )  # fmt: skip
        return self._with_data(batch, rows, 1 << 62) if rows else []

    def _with_data(self, batch: Row, rows: list[Row], most_bytes: int) -> list[Waiting]:
        found: list[Waiting] = []
        total = 0
        try:
            with open(self._store.path(batch["input_file_id"]), "rb") as file:
                for row in rows:
                    total += row["size"]
                    if found and total > most_bytes:
                        break
                    file.seek(row["begin"])
                    found.append(Waiting(row["number"], row["custom_id"], row["attempts"], file.read(row["size"])))
        except FileNotFoundError:
            raise MissingInput(f"the content of file {batch['input_file_id']} is not there any more") from None
        except OSError as error:
            with troubled(self._store.folder):
                raise error
        return found

    def attempted(self, tries: Sequence[tuple[int, int, int]]) -> None:
        """Notes how often lines were sent: (batch, line, attempts)."""
        with self._store.writing() as database:
            database.executemany(
                "UPDATE lines SET attempts = ? WHERE batch = ? AND number = ?",
                [(attempts, seq, number) for seq, number, attempts in tries],
            )

    def record(self, results: Sequence[tuple[int, Result]]) -> None:
        """Commits results, by batch. A line that has one already keeps it."""
        with self._store.writing() as database:
            for seq, result in results:
                record_one(database, seq, result)

    def unfinished(self, seq: int) -> bool:
        """Whether a line has no result."""
        return self._store.one("SELECT 1 FROM lines WHERE batch = ? AND over = 0 LIMIT 1", seq) is not None

    def finishing(self, batch: Row, status: str, now: Callable[[], float]) -> Iterator[None]:
        """Ends a batch with this status, in pieces: lines without a result get one that says why, and the result files
        are written."""
        seq, batch_id = batch["seq"], batch["id"]
        if batch["status"] == "in_progress":
            with self._store.writing() as database:
                # The stamp says after a restart which of the two ends this one is.
                database.execute(
                    "UPDATE batches SET status = 'finalizing', finalizing_at = ?, expired_at = ? WHERE seq = ?",
                    (int(now()), int(now()) if status == "expired" else None, seq),
                )
        code, message = CANCELLED if status == "cancelled" else EXPIRED
        while rows := self._store.all(
            "SELECT number, custom_id FROM lines WHERE batch = ? AND over = 0 LIMIT ?", seq, PIECE
        ):
            told = [
                (
                    seq,
                    Result(row["number"], False, failed_line(batch_id, row["number"], row["custom_id"], code, message)),
                )
                for row in rows
            ]
            self.record(told)
            yield
        made: list[tuple[str, str, int]] = []
        for good, column in ((True, "output_file_id"), (False, "error_file_id")):
            file_id = f"file-{batch_id.removeprefix('batch_')}{'o' if good else 'e'}"
            size = self._store.write_part(file_id, self._result_lines(seq, good=good))
            yield
            if size:
                self._store.keep(file_id)
                made.append((column, file_id, size))
            else:
                self._store.part(file_id).unlink(missing_ok=True)
        with self._store.writing() as database:
            for column, file_id, size in made:
                name = f"{batch_id}_{column.removesuffix('_file_id')}.jsonl"
                insert_file(
                    database, file_id, batch["tenant"], name, "batch_output", size, now(), self._config.keep_days
                )
                database.execute(f"UPDATE batches SET {column} = ? WHERE seq = ?", (file_id, seq))
            database.execute(f"UPDATE batches SET status = ?, {status}_at = ? WHERE seq = ?", (status, int(now()), seq))
            for table in ("lines", "results"):
                database.execute(f"DELETE FROM {table} WHERE batch = ?", (seq,))

    def _result_lines(self, seq: int, *, good: bool) -> Iterator[bytes]:
        after = -1
        while rows := self._store.all(
            "SELECT number, line FROM results WHERE batch = ? AND good = ? AND number > ? ORDER BY number LIMIT ?",
            seq, good, after, PIECE,
        ):  # fmt: skip
            for row in rows:
                yield row["line"] + b"\n"
            after = rows[-1]["number"]

    def give_up(self, batch: Row, missing: MissingInput) -> None:
        """Ends the lines of a batch whose input is gone, so that it is completed with the results that it has."""
        told = (batch["seq"], batch["id"])
        while rows := self._store.all(
            "SELECT number, custom_id FROM lines WHERE batch = ? AND over = 0 LIMIT ?", told[0], PIECE
        ):
            results = [
                Result(
                    row["number"], False,
                    failed_line(told[1], row["number"], row["custom_id"], "input_file_missing", str(missing)),
                )
                for row in rows
            ]  # fmt: skip
            self.record([(told[0], result) for result in results])


def _flawed(batch_id: str, line: InputLine) -> bytes:
    message = f"line {line.number}: {line.flaw}"
    return failed_line(batch_id, line.number, line.custom_id, "invalid_line", message, line.param)


def record_one(database: sqlite3.Connection, seq: int, result: Result) -> None:
    ended = database.execute(
        "UPDATE lines SET over = 1 WHERE batch = ? AND number = ? AND over = 0", (seq, result.number)
    ).rowcount
    if not ended:
        return
    database.execute(
        "INSERT INTO results (batch, number, good, line) VALUES (?, ?, ?, ?)",
        (seq, result.number, result.good, result.line),
    )
    database.execute(
        "UPDATE batches SET completed = completed + ?, failed = failed + ?, input_tokens = input_tokens + ?,"
        " cached_tokens = cached_tokens + ?, output_tokens = output_tokens + ? WHERE seq = ?",
        (result.good, not result.good, *result.tokens, seq),
    )
