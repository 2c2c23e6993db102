"""One batch while it runs: which of its lines are at hand, under way, and to be sent again.

The rows in the store say what is over. What is here is made of them anew after a restart.
"""

from collections import deque
from heapq import heappop, heappush

from headgate.batches.call import LineCall
from headgate.batches.jobs import Waiting
from headgate.batches.store import Row

AT_HAND = 256
"""Lines that are read from the file ahead of being sent; half of them are read at a time."""
AT_HAND_BYTES = 8 * 1024 * 1024
MOST_AGAIN = 256
"""Lines that wait to be sent again after a failure, above which no further line is read."""


class BatchRun:
    def __init__(self, row: Row) -> None:
        self.row = row
        self.seq: int = row["seq"]
        self.id: str = row["id"]
        self.tenant: str = row["tenant"]
        self.ready: deque[Waiting] = deque()
        self.calls: dict[int, tuple[LineCall, Waiting]] = {}
        """Lines under way, by number, the oldest first."""
        self.again: list[tuple[float, int]] = []
        """A heap of lines that failed: when each is sent again, and its number."""
        self.after = 0
        """The number of the last line that was read."""
        self.read_all = False
        self.paused_until = 0.0
        """Until then none of its lines is sent, because one was refused."""
        self.reason = ""
        """Why its next line waits; empty: it does not."""
        self.busy = False
        """Its rows are being changed as a whole: it is validated or finished."""

    @property
    def stopping(self) -> bool:
        return bool(self.row["status"] == "cancelling")

    @property
    def running(self) -> bool:
        return bool(self.row["status"] == "in_progress")

    def wants_lines(self) -> bool:
        few = len(self.ready) <= AT_HAND // 2
        return self.running and not self.busy and not self.read_all and few and len(self.again) < MOST_AGAIN

    def took(self, lines: list[Waiting]) -> None:
        """Takes in what was read from `after` on; nothing: there is no more."""
        self.ready.extend(lines)
        if lines:
            self.after = lines[-1].number
        else:
            self.read_all = True

    def next_line(self, now: float) -> Waiting | None:
        """The line to be sent next; None: none may be now."""
        return self.ready[0] if self.ready and self.running and not self.busy and now >= self.paused_until else None

    def put_back(self, line: Waiting) -> None:
        self.ready.appendleft(line)

    def send_again(self, at: float, number: int) -> None:
        heappush(self.again, (at, number))

    def due_again(self, now: float) -> list[int]:
        """Lines whose pause is over."""
        due = []
        while self.again and self.again[0][0] <= now:
            due.append(heappop(self.again)[1])
        return due

    @property
    def idle(self) -> bool:
        """Whether nothing of it is at hand or under way any more."""
        return self.read_all and not self.ready and not self.calls and not self.again

    def start_over(self) -> None:
        """Reads again all lines that have no result."""
        self.ready.clear()
        self.again.clear()
        self.after, self.read_all = 0, False
