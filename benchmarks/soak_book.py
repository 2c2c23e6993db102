"""Whether every request that was sent has exactly one outcome, and the client saw what that outcome says.

The client numbers its requests; the number is part of the id. Headgate's journal (`record.path`) has a line for each
request by its id. Both sides are entered here as they come, compared, and forgotten.
"""

import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ID = "soak-"
DONE, FAILED, LEFT, SLOW, CUT = "done", "failed", "left", "slow", "cut"
"""How it ended for the client: whole; with an error that says so; by its own leaving; by its not reading; or by nothing
that says anything: the connection ended, or no answer came in time."""
GOOD = frozenset({"completed", "time_cap"})
MOST_SHOWN = 20


@dataclass(frozen=True, slots=True)
class End:
    """What the client saw."""

    how: str
    status: int
    """0: none came."""


class Book:
    def __init__(self) -> None:
        self.sent = 0
        self.kinds: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.uncounted = 0
        """Requests that never reach a handler, such as one for no path there is: answered, and without an outcome."""
        self.unanswered = 0
        self.twice = 0
        self.contradicted = 0
        self.foreign = 0
        """Records of requests that the client did not send."""
        self._examples: dict[str, list[str]] = {}
        self.attempts_most = 0
        self._open: dict[int, str] = {}
        """Kinds of those that were sent and have no record yet."""
        self._ends: dict[int, End] = {}
        """How requests ended that have no record yet, as the client saw it."""
        self._records: dict[int, dict[str, Any]] = {}
        """Records of requests that the client has not seen end."""

    @property
    def counted(self) -> int:
        """Requests that must have an outcome."""
        return self.sent - self.uncounted

    @property
    def without_record(self) -> int:
        return len(self._open)

    def begin(self, kind: str, counted: bool = True) -> int:
        number = self.sent
        self.sent += 1
        self.kinds[kind] += 1
        if counted:
            self._open[number] = kind
        else:
            self.uncounted += 1
        return number

    def end(self, number: int, kind: str, end: End, expected: frozenset[int]) -> None:
        """`expected`: statuses that this request may be answered with; empty: any."""
        self.statuses[end.status] += 1
        if end.how == CUT:
            self.unanswered += 1
            self._example(number, kind, f"no answer, or one that was cut; status {end.status}")
        elif expected and end.how in (DONE, FAILED) and end.status not in expected:
            self.contradicted += 1
            self._example(number, kind, f"answered {end.status}, expected {sorted(expected)}")
        if number in self._open:
            self._ends[number] = end
        elif (record := self._records.pop(number, None)) is not None:
            self._compare(number, kind, end, record)

    def record(self, record: dict[str, Any]) -> None:
        """A line of the journal."""
        self.outcomes[record["outcome"]] += 1
        self.attempts_most = max(self.attempts_most, len(record.get("failed", ())))
        name = record["id"]
        number = int(name.removeprefix(ID)) if name.startswith(ID) and name[len(ID) :].isdecimal() else -1
        if not 0 <= number < self.sent:
            self.foreign += 1
            self._example(number, "unknown", f"{name[:40]}: a record of no request that was sent")
            return
        kind = self._open.pop(number, None)
        if kind is None:
            self.twice += 1
            self._example(number, "record", f"a second one, or of what is no request: {record['outcome']}")
        elif (end := self._ends.pop(number, None)) is not None:
            self._compare(number, kind, end, record)
        else:
            self._records[number] = record

    def missing(self) -> list[str]:
        """Those without a record, some of them."""
        return [f"{ID}{number} ({kind})" for number, kind in list(self._open.items())[:MOST_SHOWN]]

    def _compare(self, number: int, kind: str, end: End, record: dict[str, Any]) -> None:
        # A failure after the first token is a 200 over HTTP, and an error with a status of its own over a WebSocket.
        outcome, status = record["outcome"], record.get("status", 200)
        agrees = True
        if end.how == DONE:
            agrees = status == end.status and (end.status != 200 or outcome in GOOD)
        elif end.how == FAILED:
            agrees = outcome not in GOOD and (status == end.status or 200 in (status, end.status))
        if not agrees:
            self.contradicted += 1
            said = f"{end.how} {end.status} for the client, {outcome} {status} in its record"
            self._example(number, kind, f"{said}: {record.get('message', '')[:80]}")

    def _example(self, number: int, kind: str, what: str) -> None:
        """A few of each sort."""
        known = self._examples.setdefault(f"{kind}: {what}", []) if len(self._examples) < MOST_SHOWN else []
        if len(known) < 3:
            known.append(f"{ID}{number}")

    def told(self) -> list[str]:
        """What was wrong, with a few ids of each sort."""
        return [f"{what} ({', '.join(known)} …)" for what, known in self._examples.items()]


class Tail:
    """Lines of a file as they are written, also when it is put aside and begun anew meanwhile."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb")
        self._rest = b""

    def records(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:
            data = self._file.read()
            *lines, self._rest = (self._rest + data).split(b"\n")
            found += [record for record in map(json.loads, filter(None, lines)) if "id" in record]
            if self._path.exists() and os.stat(self._path).st_ino != os.fstat(self._file.fileno()).st_ino:
                if self._file.read(1):
                    self._file.seek(-1, os.SEEK_CUR)
                    continue
                self._file.close()
                self._file, self._rest = self._path.open("rb"), b""
                continue
            return found

    def close(self) -> None:
        self._file.close()
