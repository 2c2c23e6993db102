"""Chooses how much of each prompt goes into the next step.

All streams decode first. The time that their gap targets leave is for prompts, by lane and deadline. Less urgent
prompts fill the step up, but hardly lengthen it for a more urgent one; a prompt that its age has lifted past more
urgent lanes has a share of each step, whatever else there is.
"""

from headgate.config.engine import BatchConfig
from headgate.model.sequence import Sequence
from headgate.model.step import Row
from headgate.policy.batching.estimate import StepShape, StepTime
from headgate.policy.batching.urgency import turn, urgency


class Streams:
    """What the running streams take of one step, and what they leave of it. Never changed once made."""

    __slots__ = ("context", "count", "drafted", "in_time_s")

    def __init__(self, count: int, context: int, in_time_s: float, drafted: int = 0) -> None:
        self.count = count
        self.context = context
        """Token pairs that the streams attend to in the step."""
        self.in_time_s = in_time_s
        """Seconds from the step's beginning until the first of the streams' next tokens is due; infinite: there are no
        streams."""
        self.drafted = drafted
        """Guessed tokens that the step verifies, beside the one token of each stream."""


def streams_of(decodes: list[Sequence], now: float) -> Streams:
    """Returns what these sequences, which all decode one token, take of a step that begins now."""
    context = sum([sequence.computed + 1 for sequence in decodes])
    in_time_s = float("inf")
    for sequence in decodes:
        assert sequence.last_token_at is not None
        in_time_s = min(in_time_s, sequence.last_token_at + sequence.gap_target_s - now)
    return Streams(len(decodes), context, in_time_s)


class Chunks:
    """The prompts' part of one step."""

    def __init__(self, config: BatchConfig, step_time: StepTime, streams: Streams, moves_s: float, now: float) -> None:
        """`moves_s`: seconds of the step that KV moves take. `now`: when the step begins."""
        self._config = config
        self._step_time = step_time
        self._now = now
        self._decodes = streams.count
        self._drafted = streams.drafted
        self._context = streams.context
        self._streams = streams.context
        """The part of `_context` that the streams attend to."""
        self._tokens = 0
        self._most = min(config.chunk_limit, config.step_tokens - streams.count - streams.drafted)
        self._counts: dict[int, int] = {}
        caution, in_time_s = step_time.caution, streams.in_time_s
        self._within_s = (min(config.step_limit_s, in_time_s) - moves_s) / caution
        alone_s = step_time.predict(StepShape(streams.drafted, streams.count, streams.context))
        self._beside_s = (min(config.step_limit_s + caution * alone_s, in_time_s) - moves_s) / caution
        """Seconds for prompts like `_within_s`, but with the step limit for prompts alone. Otherwise many streams, each
        with time left, would take all of it, and the most urgent prompt would advance by the minimum only."""

    def rows(self, prefilling: list[Sequence]) -> list[Row]:
        """Returns the rows of these prompts, and sorts the prompts by turn."""
        counts = self.counts(prefilling)
        return [_row(sequence, counts[sequence.id]) for sequence in prefilling if counts.get(sequence.id)]

    def counts(self, prefilling: list[Sequence]) -> dict[int, int]:
        """Returns the tokens of each of these prompts, by id, and sorts the prompts by turn. A prompt that is left out,
        or has 0, runs none."""
        now, config = self._now, self._config
        prefilling.sort(key=lambda s: turn(s, now))
        first = prefilling[0]
        self._share(prefilling, first)
        urgent = [sequence for sequence in prefilling if sequence.priority == first.priority]
        wanted = sum([sequence.pending for sequence in urgent])
        within_s, least = self._within_s, min(config.chunk_floor, self._most)
        if self._decodes and wanted > self._fitting(first, within_s):
            within_s = max(within_s, self._beside_s)
        for sequence in urgent:
            self._take(sequence, self._fitting(sequence, within_s), least)
        self._fill(prefilling[len(urgent) :], least)
        return self._counts

    def _share(self, prefilling: list[Sequence], first: Sequence) -> None:
        """Gives the oldest prompt that age has lifted past the first its share, before any other prompt gets tokens."""
        config, now = self._config, self._now
        oldest = min(prefilling, key=lambda s: urgency(s, now, config))
        if oldest.priority > first.priority:
            share, most = config.aged_share, self._fitting(first, self._within_s)
            rest = most - int(share * most)
            context = self._context + rest * (first.computed + rest)
            without_s = self._step_time.predict(StepShape(self._drafted, self._decodes, self._context))
            rest_s = self._step_time.predict(StepShape(self._drafted + rest, self._decodes, context))
            within_s = min(self._within_s, rest_s + (rest_s - without_s) * share / (1.0 - share))
            fitting = self._step_time.largest_prefill(
                within_s, self._decodes, context, oldest.computed, int(share * most), self._drafted + rest
            )
            self._take(oldest, fitting, max(1, int(share * config.chunk_floor)))

    def _fill(self, others: list[Sequence], least: int) -> None:
        """Adds less urgent prompts, as long as the step takes no longer than with a whole chunk of a prompt's
        beginning: a chunk 100 000 tokens further on takes four times as long on a GPU."""
        if others:
            most = self._most
            shape = StepShape(self._drafted + most, self._decodes, self._streams + most * most)
            whole_s = self._step_time.predict(shape)
            within_s = min(self._within_s, whole_s)
            for sequence in others:
                self._take(sequence, self._fitting(sequence, within_s), least)

    def _fitting(self, sequence: Sequence, within_s: float) -> int:
        """Returns the maximum tokens of a prompt that the step still holds."""
        start = sequence.computed + self._counts.get(sequence.id, 0)
        most = self._most - self._tokens
        beside = self._drafted + self._tokens
        return self._step_time.largest_prefill(within_s, self._decodes, self._context, start, most, beside)

    def _take(self, sequence: Sequence, fitting: int, least: int) -> None:
        """Adds `fitting` tokens of a prompt, or enough that the step has `least` prompt tokens, however tight the
        running streams."""
        have = self._counts.get(sequence.id, 0)
        count = min(max(fitting, least - self._tokens), sequence.pending - have)
        if count > 0:
            self._counts[sequence.id] = have + count
            self._tokens += count
            self._context += count * (sequence.computed + have + count)


def _row(sequence: Sequence, count: int) -> Row:
    assert sequence.slot is not None
    return Row(sequence, sequence.slot, sequence.computed, count, count == sequence.pending)
