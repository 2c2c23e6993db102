"""Keeps the steps that were begun and are not back yet, for an engine that plans a step while another one runs.

The next step cannot begin before those are back: what a stream may still wait counts from then, and so does a step's
duration.
"""

from collections import deque

from headgate.policy.batching.estimate import StepShape, StepTime


class StepBack:
    """A step that is back. Never changed once made."""

    __slots__ = ("began", "gives", "predicted_s", "shape", "took_s")

    def __init__(
        self, shape: StepShape, began: float, took_s: float, predicted_s: float, gives: frozenset[str]
    ) -> None:
        self.shape = shape
        self.began = began
        """When it could begin: once it was planned, and the one before it was back."""
        self.took_s = took_s
        self.predicted_s = predicted_s
        self.gives = gives
        """The sequences that it gave a token."""


class StepsAhead:
    def __init__(self, step_time: StepTime) -> None:
        self._step_time = step_time
        self._flying: deque[tuple[object, StepShape, float, float, frozenset[str]]] = deque()
        """For each step: what it is known by, its shape, when it was planned, its predicted seconds, the sequences that
        it gives a token."""
        self._back_at = float("-inf")

    def __len__(self) -> int:
        return len(self._flying)

    def sent(self, known_by: object, shape: StepShape, now: float, gives: frozenset[str]) -> None:
        """Adds a step planned now."""
        self._flying.append((known_by, shape, now, self._step_time.predict(shape), gives))

    def free_at(self, now: float) -> float:
        """Returns when a step that is planned now can begin."""
        at = self._back_at
        for _, _, sent, predicted_s, _ in self._flying:
            at = max(at, sent) + predicted_s
        return max(now, at)

    def last_token_at(self, number: str, told_at: float, now: float) -> float:
        """Returns when the newest token of a stream comes, or came: it may be in a step that is not back."""
        at, found = self._back_at, told_at
        for _, _, sent, predicted_s, gives in self._flying:
            at = max(at, sent) + predicted_s
            if number in gives:
                found = max(now, at)
        return found

    def back(self, known_by: object, now: float) -> StepBack | None:
        """Takes out the step known by this; those before it are lost. None: it is not known."""
        while self._flying:
            known, shape, sent, predicted_s, gives = self._flying.popleft()
            began = max(sent, self._back_at)
            if known is known_by:
                self._back_at = now
                return StepBack(shape, began, max(now - began, 1e-6), predicted_s, gives)
        return None
