"""Compares each replica with its machine profile: how long its tokens take, beside how long they should.

A replica's latest answers say when each began and ended, and so how many decoded together, over how much context, and
which prompts were computed meanwhile. A step takes what the profile says for that; the median ratio of what tokens took
to what they should have taken is the drift. What other gateways and other clients send to the replica is not seen: it
counts as drift, as it does in truth for the requests here.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from statistics import median
from typing import Final

from headgate.config.gateway import ObserveConfig
from headgate.explain.diagnose import DriftView
from headgate.machine.profile import Profile
from headgate.machine.step_features import StepFeatures
from headgate.model.outcome import Outcome
from headgate.model.record import Record
from headgate.model.replica import Replica, ReplicaId

ANY: Final = "any"
"""Key of the profile for replicas whose tag gpu_type has none."""
LEAST: Final = 30
"""Minimum answers of a replica that are judged."""
LEAST_TOKENS: Final = 8
"""Minimum output tokens of an answer that is judged: of fewer, the first gap is most."""
AT_A_TIME: Final = 8
"""Replicas that are compared at a time: each takes about a millisecond, in which no stream moves."""
EVERY_S: Final = 10.0
MOST: Final = 1024
"""Maximum replicas whose drift is kept."""


class Drift:
    def __init__(self, profiles: Mapping[str, Profile], recent: Callable[[ReplicaId], Sequence[Record]]) -> None:
        """`recent`: the latest records of a replica."""
        self._profiles = profiles
        self._recent = recent
        self._found: tuple[DriftView, ...] = ()
        self._turn = 0
        self._at = float("-inf")

    def look(self, replicas: Sequence[Replica], now: float) -> tuple[DriftView, ...]:
        """What is known of these replicas. Some of them are compared anew, by turns."""
        if not self._profiles or not replicas:
            return ()
        if now - self._at < EVERY_S:
            return self._found
        self._at = now
        turn = [replicas[(self._turn + index) % len(replicas)] for index in range(min(AT_A_TIME, len(replicas)))]
        self._turn += len(turn)
        here, again = {one.id for one in replicas}, {one.id for one in turn}
        kept = [one for one in self._found if one.replica in here - again]
        found = [made for one in turn if (made := self._compared(one)) is not None]
        self._found = tuple(sorted((*kept, *found), key=lambda one: one.replica))[:MOST]
        return self._found

    def _compared(self, replica: Replica) -> DriftView | None:
        profile = self._profiles.get(replica.tags.get("gpu_type", ANY)) or self._profiles.get(ANY)
        if profile is None:
            return None
        ratios = token_ratios(profile, self._recent(replica.id))
        return None if len(ratios) < LEAST else DriftView(replica.id, profile.name, median(ratios), len(ratios))


class _Sum:
    """A sum over time of what begins and ends, and its integral up to any time."""

    def __init__(self, changes: Iterable[tuple[float, float]]) -> None:
        ordered = sorted(changes)
        self._times = [at for at, _ in ordered]
        self._levels = list(accumulate(change for _, change in ordered))
        spans = [after - before for before, after in zip(self._times, self._times[1:], strict=False)]
        parts = [span * level for span, level in zip(spans, self._levels, strict=False)]
        self._areas = list(accumulate(parts, initial=0.0))

    def area(self, at: float) -> float:
        index = bisect_right(self._times, at) - 1
        return self._areas[index] + (at - self._times[index]) * self._levels[index] if index >= 0 else 0.0


def token_ratios(profile: Profile, records: Iterable[Record]) -> list[float]:
    """For each answer: its time per token, over what the profile says for it."""
    answers = [one for one in records if _tells(one)]
    if not answers:
        return []
    spans = [(one.at + (one.ttft_s or 0.0), one.at + (one.ttft_s or 0.0) + one.stream_s) for one in answers]
    contexts = [one.prompt_tokens + one.output_tokens / 2 for one in answers]
    together = _Sum(change for begin, end in spans for change in ((begin, 1.0), (end, -1.0)))
    context = _Sum(
        change for (begin, end), held in zip(spans, contexts, strict=True) for change in ((begin, held), (end, -held))
    )
    firsts = sorted(
        (begin, max(1, one.prompt_tokens - one.cached_tokens)) for (begin, _), one in zip(spans, answers, strict=True)
    )
    times = [at for at, _ in firsts]
    ratios = []
    for (begin, end), one in zip(spans, answers, strict=True):
        lasts = end - begin
        decodes = max(1, round((together.area(end) - together.area(begin)) / lasts))
        held = round((context.area(end) - context.area(begin)) / lasts)
        steps, expected_s = one.output_tokens - 1, 0.0
        for _, tokens in firsts[bisect_right(times, begin) : bisect_left(times, end)]:
            for start in range(0, tokens, profile.chunk_limit):
                chunk = min(profile.chunk_limit, tokens - start)
                pairs = chunk * (2 * start + chunk)
                expected_s += profile.step_s(StepFeatures(prefill=chunk, decodes=decodes, context=held, pairs=pairs))
                steps -= 1
        expected_s += max(0, steps) * profile.step_s(StepFeatures(decodes=decodes, context=held))
        ratios.append(lasts / expected_s)
    return ratios


def _tells(record: Record) -> bool:
    return (
        record.outcome is Outcome.COMPLETED
        and record.stream
        and record.choices == 1
        and record.ttft_s is not None
        and record.stream_s > 0.0
        and record.output_tokens >= LEAST_TOKENS
    )


def profiles_of(observe: ObserveConfig) -> Mapping[str, Profile]:
    """The profiles that the config names. Raises UsageError for one that is not known or can't be read."""
    if not observe.profiles:
        return {}
    from headgate.engine.runner.profile_file import find  # brings much along that a gateway does not need otherwise

    return {name: find(profile) for name, profile in observe.profiles.items()}
