"""Holds the result of each request, from which every report is made, whether a client measured it or a simulator
computed it.

    rows = Rows()
    rows.add(at_s=0.31, lane="fast", ttft_s=0.2, tpot_s=0.03, max_gap_s=0.08, e2e_s=2.1, output_tokens=64)
    rows.add(at_s=0.35, lane="fast", kind="refused", why="503 lane_full", e2e_s=0.001)
    results = rows.results("what it is about", source="simulation", facts={"seed": "1"})

Times are in seconds. `at_s` is when the request was due, counted from the beginning; every latency counts from there. A
figure that is unknown or does not exist is None when it is added and NaN in a column. Rows are kept as columns, 80
bytes per request.
"""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headgate.model.lane import LANES
from headgate.model.outcome import Kind

Floats = NDArray[np.float64]
Source = Literal["bench", "simulation"]

KINDS: tuple[Kind, ...] = ("ok", "refused", "failed", "client")
"""As in model/outcome: refused requests may come back later, failed is the server's fault, client is the client's own
fault, or it left before the end. Latencies are taken from ok requests only."""
FIGURES = {"ttft": "TTFT", "tpot": "TPOT", "max_gap": "max gap", "e2e": "e2e", "queue": "queue"}
"""Time to first token, mean time per token after it, longest gap between two tokens, whole duration, time in the
queue."""
LEVELS = (0.5, 0.9, 0.95, 0.99, 0.999)
MOST_GAPS = 4_000_000
"""Maximum gaps between tokens to keep, all requests together."""


@dataclass(frozen=True, slots=True)
class Target:
    """A bound that latencies should stay under: drawn in plots, and judged in tables where a percentile is named."""

    figure: str
    within_s: float
    lane: str | None = None
    """None: all lanes."""
    level: float | None = None
    """The percentile that the bound applies to, from 0 to 1; None: each request by itself, as for goodput."""
    up_to_tokens: int | None = None
    """The bound applies to answers of at most this many tokens; None: to all answers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Results:
    title: str
    source: Source
    duration_s: float
    """Seconds from the beginning to the last answer."""
    lanes: tuple[str, ...]
    lane: NDArray[np.int32]
    """Index into `lanes`."""
    kind: NDArray[np.int8]
    """Index into KINDS."""
    reasons: tuple[str, ...]
    why: NDArray[np.int32]
    """Index into `reasons`: empty for ok, else the status and the server's code, or what happened."""
    at_s: Floats
    ttft_s: Floats
    tpot_s: Floats
    max_gap_s: Floats
    e2e_s: Floats
    queue_s: Floats
    lag_s: Floats
    """Seconds by which the client itself was late in sending the request."""
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    gaps: tuple[Floats, ...] = ()
    """The gaps between tokens of each request in seconds; empty: they were not kept."""
    goodput: tuple[Target, ...] = ()
    """Bounds that a good request keeps; empty: good requests are not counted."""
    promises: tuple[Target, ...] = ()
    """Percentiles that should be kept."""
    facts: dict[str, str] = field(default_factory=dict)
    """Facts about the run, for people to read: address, workload, seed, CPU."""
    notes: tuple[str, ...] = ()
    """What a reader must know before believing the figures."""

    def __len__(self) -> int:
        return len(self.at_s)

    def figure(self, name: str) -> Floats:
        """One value per request; for gaps, the longest."""
        name = "max_gap" if name == "gap" else name
        column: Floats = getattr(self, f"{name}_s")
        return column

    def of_lane(self, lane: str | None) -> NDArray[np.bool_]:
        """Marks the rows of a lane; None: all rows."""
        if lane is None:
            return np.ones(len(self), np.bool_)
        return np.asarray(self.lane == self.lanes.index(lane)) if lane in self.lanes else np.zeros(len(self), np.bool_)

    @property
    def ok(self) -> NDArray[np.bool_]:
        return np.asarray(self.kind == 0)

    def values(self, figure: str, lane: str | None = None) -> Floats:
        """The figure of the ok requests that have it, in order of arrival."""
        column = self.figure(figure)
        return column[self.of_lane(lane) & self.ok & ~np.isnan(column)]

    def gaps_of(self, mine: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Gaps between tokens of these requests, and the number of each. Where gaps were not kept one by one: each
        request's longest gap, and its other gaps at their mean."""
        if self.gaps:
            found = [self.gaps[at] for at in np.flatnonzero(mine)]
            every = np.concatenate(found) if found else np.array([])
            return every, np.ones(len(every))
        mine = mine & ~np.isnan(self.max_gap_s) & ~np.isnan(self.tpot_s)
        longest, all_s = self.max_gap_s[mine], self.e2e_s[mine] - self.ttft_s[mine]
        others = np.maximum(0.0, np.round(all_s / np.maximum(self.tpot_s[mine], 1e-9)) - 1)
        mean = np.maximum(0.0, all_s - longest) / np.maximum(others, 1)
        return np.concatenate([longest, mean]), np.concatenate([np.ones(len(longest)), others])

    @property
    def good(self) -> NDArray[np.bool_]:
        """Marks the requests that were answered and kept every bound of goodput. A figure that a request does not have,
        such as the time per token of a single one, counts as kept."""
        good = self.ok.copy()
        for target in self.goodput:
            applies = self.of_lane(target.lane)
            if target.lane is None:  # a lane's own bound replaces the bound for all lanes
                for other in self.goodput:
                    if other.lane is not None and other.figure == target.figure:
                        applies &= ~self.of_lane(other.lane)
            good &= ~(applies & (self.figure(target.figure) > target.within_s))
        return good


def _lane_order(lane: str) -> tuple[int, str]:
    """The standard lanes in their own order, then the others by name."""
    usual = list(LANES)
    return (usual.index(lane) if lane in usual else len(usual)), lane


class Rows:
    """Collects results as they come in."""

    def __init__(self) -> None:
        self._lanes: dict[str, int] = {}
        self._reasons: dict[str, int] = {"": 0}
        self._lane, self._kind, self._why = array("i"), array("b"), array("i")
        self._floats = {name: array("d") for name in ("at", "ttft", "tpot", "max_gap", "e2e", "queue", "lag")}
        self._prompt, self._output = array("q"), array("q")
        self._gaps: list[Floats] = []
        self._kept_gaps = 0

    def __len__(self) -> int:
        return len(self._kind)

    def add(
        self,
        *,
        at_s: float,
        lane: str,
        kind: Kind = "ok",
        why: str = "",
        ttft_s: float | None = None,
        tpot_s: float | None = None,
        max_gap_s: float | None = None,
        e2e_s: float | None = None,
        queue_s: float | None = None,
        lag_s: float | None = None,
        prompt_tokens: int = 0,
        output_tokens: int = 0,
        gaps: Sequence[float] | None = None,
    ) -> None:
        self._lane.append(self._lanes.setdefault(lane, len(self._lanes)))
        self._kind.append(KINDS.index(kind))
        self._why.append(self._reasons.setdefault(why, len(self._reasons)))
        floats = self._floats
        floats["at"].append(at_s)
        for name, value in (("ttft", ttft_s), ("tpot", tpot_s), ("max_gap", max_gap_s), ("e2e", e2e_s)):
            floats[name].append(math.nan if value is None else value)
        floats["queue"].append(math.nan if queue_s is None else queue_s)
        floats["lag"].append(math.nan if lag_s is None else lag_s)
        self._prompt.append(prompt_tokens)
        self._output.append(output_tokens)
        if gaps is not None:
            keep = self._kept_gaps + len(gaps) <= MOST_GAPS
            self._kept_gaps += len(gaps) if keep else 0
            self._gaps.append(np.array(gaps if keep else ()))

    def extend(self, other: "Rows") -> None:
        """Appends the rows of another."""
        lanes = [self._lanes.setdefault(lane, len(self._lanes)) for lane in other._lanes]
        reasons = [self._reasons.setdefault(reason, len(self._reasons)) for reason in other._reasons]
        self._lane.extend(lanes[index] for index in other._lane)
        self._why.extend(reasons[index] for index in other._why)
        self._kind.extend(other._kind)
        for name, column in self._floats.items():
            column.extend(other._floats[name])
        self._prompt.extend(other._prompt)
        self._output.extend(other._output)
        self._gaps.extend(other._gaps)
        self._kept_gaps += other._kept_gaps

    def results(
        self,
        title: str,
        *,
        source: Source,
        duration_s: float | None = None,
        goodput: Sequence[Target] = (),
        promises: Sequence[Target] = (),
        facts: dict[str, str] | None = None,
        notes: Sequence[str] = (),
    ) -> Results:
        """All rows in order of arrival. `duration_s` None: the end of the last request."""
        floats = {f"{name}_s": np.array(column) for name, column in self._floats.items()}
        order = np.argsort(floats["at_s"], kind="stable")
        ends = floats["at_s"] + np.nan_to_num(floats["e2e_s"])
        columns: dict[str, Any] = {name: column[order] for name, column in floats.items()}
        lanes = tuple(sorted(self._lanes, key=_lane_order))
        rank = np.array([lanes.index(lane) for lane in self._lanes], np.int32)
        lane = np.array(self._lane, np.int32)[order]
        return Results(
            title=title,
            source=source,
            duration_s=float(ends.max(initial=0.0)) if duration_s is None else duration_s,
            lanes=lanes,
            lane=rank[lane] if len(lane) else lane,
            kind=np.array(self._kind, np.int8)[order],
            reasons=tuple(self._reasons),
            why=np.array(self._why, np.int32)[order],
            prompt_tokens=np.array(self._prompt, np.int64)[order],
            output_tokens=np.array(self._output, np.int64)[order],
            gaps=tuple(self._gaps[i] for i in order) if len(self._gaps) == len(self) else (),
            goodput=tuple(goodput),
            promises=tuple(promises),
            facts=dict(facts or {}),
            notes=tuple(notes),
            **columns,
        )
