"""One engine in virtual time: the Batcher that serves, and a profile that says how long each of its steps takes.

No gateway is before it, so that what is measured is the Batcher's own doing.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop

from headgate.config.engine import BatchConfig
from headgate.machine.profile import Noise, Profile
from headgate.machine.step_features import shape
from headgate.model.lane import LANES
from headgate.model.sampling import Sampled
from headgate.model.sequence import Sequence
from headgate.policy.batching.estimate import StepTime


@dataclass(frozen=True, slots=True)
class Come:
    """A request that comes to the engine."""

    at_s: float
    lane: str
    prompt: int
    output: int
    """Tokens that it says."""
    cap: int = 0
    """Tokens that it may say; 0: as many as it does."""
    name: str = ""
    """What it is counted under; empty: its lane."""


@dataclass(slots=True)
class Served:
    """What became of all of them."""

    sequences: list[tuple[Come, Sequence]]
    ended_s: float = 0.0
    longest_step_s: float = 0.0
    swaps: int = 0
    recomputes: int = 0
    gaps: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Between two tokens of a stream, by name."""

    def ttfts(self, name: str) -> list[float]:
        return [ttft(one) for come, one in self.sequences if (come.name or come.lane) == name]


def ttft(one: Sequence) -> float:
    assert one.first_token_at is not None
    return one.first_token_at - one.arrived


def sequence_of(number: int, come: Come) -> Sequence:
    lane = LANES[come.lane]
    return Sequence(
        id=number,
        tokens=[number] * come.prompt,  # nobody else's are the same
        prompt_len=come.prompt,
        max_output=come.cap or come.output,
        arrived=come.at_s,
        lane=come.lane,
        priority=lane.priority,
        first_token_by=come.at_s + lane.ttft_target_s,
        gap_target_s=lane.gap_target_s,
    )


def serve(
    profile: Profile,
    comes: Iterable[Come],
    config: BatchConfig | None = None,
    noise: Noise | None = None,
    step_time: StepTime | None = None,
) -> Served:
    """`step_time`: what is known of steps at first; None: about what the profile says."""
    batch = profile.batcher(config or profile.batch_config())
    if step_time is not None:
        batch.step_time = step_time
    served = Served([(come, sequence_of(number, come)) for number, come in enumerate(comes)])
    due = [(come.at_s, one.id) for come, one in served.sequences]
    heapify(due)
    now = 0.0
    while due or batch.has_work:
        while due and due[0][0] <= now:
            refused = batch.add(served.sequences[heappop(due)[1]][1])
            assert refused is None, refused
        step = batch.plan(now)
        if step is None:
            now = due[0][0] if due and not batch.waiting else now + 0.001
            continue
        took_s = profile.step_s(shape(step), noise)
        served.longest_step_s = max(served.longest_step_s, 0.0 if step.moves else took_s)
        now += took_s
        sampled, stopped = [], []
        for row in step.rows:
            if row.samples:
                come, one = served.sequences[row.sequence.id]
                sampled.append(Sampled(one.id, (one.id,)))
                if one.output_len + 1 >= come.output:
                    stopped.append(one.id)
                if one.last_token_at is not None:
                    served.gaps[come.name or come.lane].append(now - one.last_token_at)
        batch.done(step, sampled, frozenset(stopped), now, took_s)
    served.ended_s = now
    served.swaps, served.recomputes = batch.counts.swaps, batch.counts.recomputes
    return served
