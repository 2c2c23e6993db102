"""Chooses a step for an engine that takes one token budget and hands it out in order, such as vLLM.

The Batcher gives each prompt its tokens. Another engine's own scheduler gives running sequences all that they can use,
then waiting ones what is left. The same counts of `chunks` come about if the budget is their sum, the order theirs, and
a prompt that would use up what belongs to a more urgent arrival is left out of this one step.
"""

from bisect import bisect_right
from dataclasses import dataclass, replace

from headgate.config.engine import BatchConfig
from headgate.model.sequence import Sequence
from headgate.policy.batching.chunks import Chunks, Streams
from headgate.policy.batching.estimate import StepTime
from headgate.policy.batching.urgency import turn, urgency

MOST_ENTERING = 16
"""Maximum waiting sequences that one step counts on."""
TWICE: float = 2.0
"""A gap target below this multiple of a step without prompts is raised to it: within less, no prompt would advance."""


def kept_gap_s(gap_target_s: float, alone_s: float) -> float:
    """Returns the gap that can be kept where a step without prompts takes `alone_s`."""
    return max(gap_target_s, TWICE * alone_s)


@dataclass(frozen=True, slots=True)
class StepChoice:
    """What one step runs beside the streams."""

    chunk: int
    """Prompt tokens of the step."""
    prefills: list[Sequence]
    """Running prompts, the most urgent first."""
    left_out: list[Sequence]
    """Running prompts that have no part in this step."""
    waiting: list[Sequence]
    """Waiting sequences, in the order in which they may enter."""
    entering: list[Sequence]
    """Those of them that the chunk counts on."""


class StepChooser:
    def __init__(self, config: BatchConfig, step_time: StepTime, graph_sizes: tuple[int, ...] = ()) -> None:
        """`graph_sizes`: ascending token counts for which the engine has a recorded graph; a step takes as long as one
        of the next larger size."""
        self._config = config
        self._unshared = replace(config, aged_share=0.0)
        self._step_time = step_time
        self._sizes = graph_sizes
        self._waits_for_share = 0
        """Steps since an aged prompt has had its share, which is one whole step in `1 / aged_share`."""
        self._left_out = False
        """Whether the step before left a prompt out: none is left out twice in a row."""

    def choose(
        self,
        streams: Streams,
        prefills: list[Sequence],
        waiting: list[Sequence],
        seats: int,
        now: float,
        refused: frozenset[int] = frozenset(),
    ) -> StepChoice:
        """`seats`: sequences that may still enter. `now`: when the step begins. `refused`: waiting sequences that the
        engine did not let in lately; no prompt is left out for them."""
        queue = sorted(waiting, key=lambda s: urgency(s, now, self._config))
        prompts = prefills + self._entering(queue, seats)
        if not prompts:
            self._left_out = False
            return StepChoice(0, [], [], queue, [])
        prompts, counts = self._shared(streams, prompts, now)
        inside = {sequence.id for sequence in prefills}
        running = [sequence for sequence in prompts if sequence.id in inside]
        entering = [sequence for sequence in prompts if sequence.id not in inside and counts.get(sequence.id)]
        left_out = self._behind(prompts, entering, inside, refused)
        out = {sequence.id for sequence in left_out}
        chunk = sum([count for number, count in counts.items() if number not in out])
        wanted = sum([sequence.pending for sequence in prompts if sequence.id not in out])
        first = {sequence.id for sequence in entering}
        return StepChoice(
            self._rounded(chunk, wanted, streams),
            [sequence for sequence in running if sequence.id not in out],
            left_out,
            entering + [sequence for sequence in queue if sequence.id not in first],
            entering,
        )

    def _entering(self, queue: list[Sequence], seats: int) -> list[Sequence]:
        """Returns the first of the queue, as many as could have a part of one step."""
        entering: list[Sequence] = []
        room = self._config.step_tokens
        for sequence in queue[: min(seats, MOST_ENTERING)]:
            entering.append(sequence)
            room -= sequence.pending
            if room <= 0:
                break
        return entering

    def _shared(self, streams: Streams, prompts: list[Sequence], now: float) -> tuple[list[Sequence], dict[int, int]]:
        """Returns the prompts of the step, by turn, and their counts. A prompt that its age has lifted past the first
        gets its share as a whole step now and then: a budget cannot be divided."""
        config = self._config
        oldest = min(prompts, key=lambda s: urgency(s, now, config))
        first = min(prompts, key=lambda s: turn(s, now))
        if oldest.priority <= first.priority:
            self._waits_for_share = 0
            return prompts, self._counts(streams, prompts, now)
        self._waits_for_share += 1
        if self._waits_for_share * config.aged_share < 1.0:
            return prompts, self._counts(streams, prompts, now)
        self._waits_for_share = 0
        return [oldest, *[sequence for sequence in prompts if sequence is not oldest]], self._counts(
            streams, [oldest], now
        )

    def _counts(self, streams: Streams, prompts: list[Sequence], now: float) -> dict[int, int]:
        """Sorts the prompts by turn."""
        return Chunks(self._unshared, self._step_time, streams, 0.0, now).counts(prompts)

    def _behind(
        self, prompts: list[Sequence], entering: list[Sequence], inside: set[int], refused: frozenset[int]
    ) -> list[Sequence]:
        """Returns the running prompts that come after the first one to enter: they would use up its tokens."""
        ahead = next((sequence.id for sequence in entering if sequence.id not in refused), None)
        if ahead is None or self._left_out:
            self._left_out = False
            return []
        place = next(place for place, sequence in enumerate(prompts) if sequence.id == ahead)
        left_out = [sequence for sequence in prompts[place + 1 :] if sequence.id in inside]
        self._left_out = bool(left_out)
        return left_out

    def _rounded(self, chunk: int, wanted: int, streams: Streams) -> int:
        """Returns the chunk, cut so that the step is as large as a graph: the tokens beyond would cost as much as the
        whole next graph. A chunk that ends all prompts stays, and so does one that would fall below the floor."""
        beside = streams.count + streams.drafted
        place = bisect_right(self._sizes, beside + chunk)
        if chunk >= wanted or not place or place == len(self._sizes):
            return chunk
        cut = self._sizes[place - 1] - beside
        return cut if cut >= self._config.chunk_floor else chunk
