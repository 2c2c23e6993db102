"""Keeps the last minutes of an engine's steps in memory, and tells them as JSON on GET /steps.

A gateway reads them when something has gone wrong (publish/incidents/flight.py), to show which batch ran beside which
request. The engine's thread only adds a tuple to a bounded deque.
"""

from collections import deque
from itertools import islice
from typing import Final

import msgspec

from headgate.machine.step_features import is_decode
from headgate.model.clock import Clock
from headgate.model.step import Step

MOST: Final = 8192
"""Steps kept: more than a minute of an engine that makes a hundred a second; half a megabyte."""
MOST_TOLD: Final = 6000
"""Maximum steps in one answer, the latest: 300 kB."""
LONGEST_S: Final = 600.0

_encode = msgspec.json.Encoder().encode


class RecentSteps:
    """Written by the engine's thread, read by the event loop's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._steps: deque[tuple[float, float, int, int, int, int, int]] = deque(maxlen=MOST)

    def take(self, step: Step, began: float, took_s: float, _: float) -> None:
        """Adds a step that has run."""
        prefill = prompts = decodes = context = 0
        for row in step.rows:
            if is_decode(row):
                decodes += 1
                context += row.start
            else:
                prefill += row.count
                prompts += 1
        self._steps.append((began, took_s, prefill, prompts, decodes, context, len(step.moves)))

    def told(self, last_s: float) -> bytes:
        """The steps of the last `last_s` seconds, oldest first, each: age of its beginning in seconds, seconds it took,
        prompt tokens, prompts they belong to, sequences that decode, KV tokens these read, moves of KV."""
        now = self._clock()
        # A copy: the engine's thread may add to the deque meanwhile, which a loop over it would notice.
        latest = islice(reversed(self._steps.copy()), MOST_TOLD)
        told = [
            (round(now - began, 6), round(took_s, 6), *rest)
            for began, took_s, *rest in latest
            if now - began <= min(last_s, LONGEST_S)
        ]
        return _encode({"steps": told[::-1]})
