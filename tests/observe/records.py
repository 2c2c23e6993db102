"""Records that say no more than a test needs, and figures to take them."""

from typing import Any

from headgate.config.gateway import ObserveConfig
from headgate.measure.figures import Figures, Kept
from headgate.measure.windows import FIGURES
from headgate.model.lane import LANES
from headgate.model.outcome import Outcome
from headgate.model.record import Record

T0 = 1000.0


def record(lane: str = "fast", **what: Any) -> Record:
    facts: dict[str, Any] = {
        "id": "r", "at": T0, "tenant": "t", "model": "m", "outcome": Outcome.COMPLETED, "e2e_s": 1.0,
    }  # fmt: skip
    return Record(lane=lane, **{**facts, **what})


def figures(**observe: Any) -> Figures:
    return Figures(dict(LANES), ObserveConfig(**observe), T0)


def compliance(figures: Figures, lane: str, now: float) -> list[Kept]:
    """How the promises of a lane were kept in the last hour."""
    sketches = {figure: figures.sketch(figure, 3600, now, lane=lane) for figure in FIGURES}
    return figures.kept(lane, sketches, figures.counts(3600, now, lane=lane))
