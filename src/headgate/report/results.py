"""What came of each request: what every report is made of, whether a client measured it or a simulator computed it.

    rows = Rows()
    rows.add(at_s=0.31, lane="fast", ttft_s=0.2, tpot_s=0.03, max_gap_s=0.08, e2e_s=2.1, output_tokens=64)
    rows.add(at_s=0.35, lane="fast", kind="refused", why="503 lane_full", e2e_s=0.001)
    results = rows.results("what it is about", source="simulation", facts={"seed": "1"})

Times are seconds. `at_s` is when the request was due, counted from the beginning; every latency counts from there. What
is not known, or does not exist, is None when it is added and NaN in a column. Rows are kept as columns, 80 bytes each.
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
"""As in model/outcome: refused is to come back later, failed is the server's fault, client is the asker's own, or it
left before the end. Latencies are counted of what is ok."""
FIGURES = {"ttft": "TTFT", "tpot": "TPOT", "max_gap": "max gap", "e2e": "e2e", "queue": "queue"}
"""Time to first token, mean time per token after it, longest gap between two tokens, all of it, waiting for a turn."""
LEVELS = (0.5, 0.9, 0.95, 0.99, 0.999)
MOST_GAPS = 4_000_000
"""Gaps between tokens that are kept, all requests together."""


@dataclass(frozen=True, slots=True)
class Target:
    """A line that latencies should stay under: in plots, and ticked off in tables where a percentile is named."""

    figure: str
    within_s: float
    lane: str | None = None
    """None: all of them."""
    level: float | None = None
    """The percentile it is meant for, from 0 to 1; None: each request by itself, as for goodput."""
    up_to_tokens: int | None = None
    """It is meant for answers of up to so many tokens; None: for all."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Results:
    title: str
    source: Source
    duration_s: float
    """From the beginning to the last answer."""
    lanes: tuple[str, ...]
    lane: NDArray[np.int32]
    """Which of `lanes`."""
    kind: NDArray[np.int8]
    """Which of KINDS."""
    reasons: tuple[str, ...]
    why: NDArray[np.int32]
    """Which of `reasons`: empty for what is ok, else the status and the server's code, or what happened."""
    at_s: Floats
    ttft_s: Floats
    tpot_s: Floats
    max_gap_s: Floats
    e2e_s: Floats
    queue_s: Floats
    lag_s: Floats
    """How late the client itself was in sending it."""
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    gaps: tuple[Floats, ...] = ()
    """The gaps between tokens of each request, or nothing where they were not kept."""
    goodput: tuple[Target, ...] = ()
    """What a request must keep to be counted as good; none: not counted."""
    promises: tuple[Target, ...] = ()
    """Percentiles that should be kept."""
    facts: dict[str, str] = field(default_factory=dict)
    """About the run, for people: address, workload, seed, CPU."""
    notes: tuple[str, ...] = ()
    """What a reader must know before believing the figures."""

    def __len__(self) -> int:
        return len(self.at_s)

    def figure(self, name: str) -> Floats:
        """One value for each request; of gaps the longest."""
        name = "max_gap" if name == "gap" else name
        column: Floats = getattr(self, f"{name}_s")
        return column

    def of_lane(self, lane: str | None) -> NDArray[np.bool_]:
        """Which rows are of it; None: all."""
        if lane is None:
            return np.ones(len(self), np.bool_)
        return np.asarray(self.lane == self.lanes.index(lane)) if lane in self.lanes else np.zeros(len(self), np.bool_)

    @property
    def ok(self) -> NDArray[np.bool_]:
        return np.asarray(self.kind == 0)

    def values(self, figure: str, lane: str | None = None) -> Floats:
        """Of what is ok and has it, in order of arrival."""
        column = self.figure(figure)
        return column[self.of_lane(lane) & self.ok & ~np.isnan(column)]

    def gaps_of(self, mine: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Gaps between tokens of these requests, and how many there are of each. Where they were not kept one by one:
        the longest of each request, and the others at their mean."""
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
        """Which requests were answered and kept every limit for goodput. A figure that a request does not have, such
        as the time per token of a single one, is kept."""
        good = self.ok.copy()
        for target in self.goodput:
            applies = self.of_lane(target.lane)
            if target.lane is None:  # what is said of one lane replaces, for it, what is said of all
                for other in self.goodput:
                    if other.lane is not None and other.figure == target.figure:
                        applies &= ~self.of_lane(other.lane)
            good &= ~(applies & (self.figure(target.figure) > target.within_s))
        return good


def _lane_order(lane: str) -> tuple[int, str]:
    """Those that are always there in their own order, then the others."""
    usual = list(LANES)
    return (usual.index(lane) if lane in usual else len(usual)), lane


class Rows:
    """Results as they come in."""

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
        """With another's rows behind its own."""
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
        """All rows in order of arrival. Without a duration it is the end of the last of them."""
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
