"""Remembers which version answered which request, for scores that come later by the request's id."""

from collections import OrderedDict
from typing import Final

MOST: Final = 20_000
"""Answers of one rollout that may still be scored, the latest."""


class ScoreBook:
    """The answers of one rollout."""

    def __init__(self) -> None:
        self.unknown = 0
        """Scores of requests or versions that are not known here, or of requests that have theirs."""
        self._answers: OrderedDict[str, bool] = OrderedDict()

    def answered(self, request_id: str, canary: bool) -> None:
        """Notes an answer, and whether the version that is tried out gave it."""
        self._answers[request_id] = canary
        if len(self._answers) > MOST:
            self._answers.popitem(last=False)

    def whose(self, request_id: str) -> bool | None:
        """Whether the version that is tried out gave this answer, which is then scored. None: unknown."""
        found = self._answers.pop(request_id, None)
        if found is None:
            self.count_unknown()
        return found

    def count_unknown(self) -> None:
        self.unknown += 1

    def clear(self) -> None:
        self._answers.clear()
        self.unknown = 0
