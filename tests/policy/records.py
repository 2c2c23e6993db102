"""Records of requests that tests make up."""

from typing import Any

from headgate.model.outcome import Outcome
from headgate.model.record import Record

STAGES = ("accept_s", "queue_s", "retry_s", "first_s", "stream_s", "end_s")


def record(**given: Any) -> Record:
    """An ordinary streamed answer, but for what is given; its times follow from its stages."""
    values: dict[str, Any] = {
        "id": "r", "at": 100.0, "lane": "fast", "tenant": "t", "model": "m", "replica": "a", "stream": True,
        "outcome": Outcome.COMPLETED, "reason": "least loaded", "prompt_tokens": 100, "output_tokens": 21,
        "accept_s": 0.001, "first_s": 0.05, "stream_s": 0.4,
    }  # fmt: skip
    values |= given
    stages = [values.get(stage, 0.0) for stage in STAGES]
    values.setdefault("e2e_s", sum(stages))
    values.setdefault("ttft_s", sum(stages[:4]))
    values.setdefault("tpot_s", values.get("stream_s", 0.0) / 20)
    gaps = values.get("gaps", ())
    return Record(max_gap_s=max((gap.took_s for gap in gaps), default=0.0), **values)
