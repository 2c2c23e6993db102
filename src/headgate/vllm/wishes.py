"""Reads what a request wishes, and keeps for each request of vLLM a Sequence, by which the policies judge it.

A gateway sends wishes as `vllm_xargs`, which arrive as `extra_args` of the sampling parameters. A request without them
is in the lane that its prompt's length gives it.
"""

from collections.abc import Iterable, Mapping
from itertools import count
from math import isfinite
from typing import Any

from headgate.model.dialect import XARGS
from headgate.model.lane import LANES
from headgate.model.sequence import LOWEST_PRIORITY, Sequence
from headgate.policy.dispatch.intake import classify

LONGEST_S = 3600.0
MOST_TOKENS = float(1 << 31)


def wish(extra: Mapping[str, Any], name: str, least: float, most: float) -> float | None:
    """Returns the number that a request wishes for, within bounds; None: it says nothing that makes sense."""
    value = extra.get(XARGS[name])
    if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value):
        return None
    return min(most, max(least, float(value)))


class Mirror:
    """The Sequences of the requests that vLLM has, by request id."""

    def __init__(self, gap_target_s: float | None) -> None:
        """`gap_target_s`: for requests that wish for none; None: their lane's."""
        self._gap_target_s = gap_target_s
        self._sequences: dict[str, Sequence] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._sequences)

    def known(self, request_id: str) -> Sequence | None:
        return self._sequences.get(request_id)

    def of(self, request: Any, now: float, wall: float) -> Sequence:
        """Returns the request's Sequence. A new one arrived as long ago as vLLM says."""
        found = self._sequences.get(request.request_id)
        if found is None:
            found = self._sequences[request.request_id] = self._made(request, now, wall)
        return found

    def keep_only(self, alive: Mapping[str, Any]) -> None:
        """Forgets requests that vLLM no longer has; asked after each step, done when many have gone."""
        if len(self._sequences) > 2 * len(alive) + 64:
            self._sequences = {name: kept for name, kept in self._sequences.items() if name in alive}

    def forget(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._sequences.pop(request_id, None)

    def _made(self, request: Any, now: float, wall: float) -> Sequence:
        params = request.sampling_params
        extra = (getattr(params, "extra_args", None) or {}) if params is not None else {}
        prompt = request.num_prompt_tokens
        expected = wish(extra, "uncached_tokens", 0.0, MOST_TOKENS)
        uncached = prompt if expected is None else max(1, min(prompt, int(expected)))
        lane = LANES[classify(uncached_tokens=uncached, streaming=True, says_batch=False)]
        priority = wish(extra, "priority", 0.0, float(LOWEST_PRIORITY))
        if priority is None:
            priority = float(lane.priority if not request.priority else max(0, request.priority))
        ttft_s = wish(extra, "ttft_ms", 1.0, 1e3 * LONGEST_S)
        gap_s = wish(extra, "gap_ms", 1.0, 1e3 * LONGEST_S)
        arrived = now - min(LONGEST_S, max(0.0, wall - request.arrival_time))
        made = Sequence(
            id=next(self._numbers),
            tokens=request._all_token_ids,  # the very list, so that its length is always right
            prompt_len=prompt,
            max_output=request.max_tokens,
            arrived=arrived,
            lane=lane.name,
            priority=int(min(float(LOWEST_PRIORITY), priority)),
            first_token_by=arrived + (lane.ttft_target_s if ttft_s is None else ttft_s / 1e3),
            gap_target_s=(self._gap_target_s or lane.gap_target_s) if gap_s is None else gap_s / 1e3,
            expected=0 if expected is None else uncached,
        )
        made.computed = prompt - uncached
        return made
