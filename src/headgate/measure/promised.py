"""Counts from records how often requests got what was promised to each of them, or told to it, by lane."""

from typing import Final

from headgate.model.record import QuoteTold, Record

KEPT: Final = "kept"
MISSED: Final = "missed"
UNKNOWN: Final = "unknown"
UNTOLD: Final = "untold"
"""A quote without a p99."""
RESULTS: Final = (KEPT, MISSED, UNKNOWN)
OWN_FIGURES: Final = ("ttft", "tpot")


class PromisedEach:
    def __init__(self) -> None:
        self.own: dict[tuple[str, str, str], int] = {}
        """Promises that requests made for themselves: by lane, figure and result."""
        self.quotes: dict[tuple[str, str], int] = {}
        """Requests that were told when their first token comes: by lane in which they were told, and result."""

    def take(self, record: Record, lane: str) -> None:
        """Counts a record with a promise of its own. `lane`: what its lane is counted as, of a bounded set."""
        promise = record.promise
        if promise is None:
            return
        if promise.ttft_s is not None:
            self._count(lane, "ttft", promise.ttft_kept)
        if promise.tpot_s is not None:
            self._count(lane, "tpot", promise.tpot_kept)

    def take_quote(self, quote: QuoteTold, lane: str) -> None:
        """Counts what a request was told. `lane`: what the lane of the quote is counted as, of a bounded set."""
        key = (lane, UNTOLD if quote.p99_s is None else result_of(quote.kept))
        self.quotes[key] = self.quotes.get(key, 0) + 1

    def _count(self, lane: str, figure: str, kept: bool | None) -> None:
        key = (lane, figure, result_of(kept))
        self.own[key] = self.own.get(key, 0) + 1


def result_of(kept: bool | None) -> str:
    """The name in RESULTS of a promise that was kept, was not, or (None) of which it can't be told."""
    return UNKNOWN if kept is None else KEPT if kept else MISSED
