"""Chooses the version of a model for each request, and decides when a rollout takes its next step.

A request's version follows from a hash of its session (or tenant, or itself), so it stays the same without being
stored. A new version takes its share from the front of that hash: a session that has the new version keeps it while the
share grows, and all others stay where they are.

    canary       a share in steps; the verdict (verdict.py) decides about the next one automatically
    split        a fixed share, A/B: compared, but nothing is decided
    blue_green   all requests at once; the old version is kept warm
    shadow       copies only: clients never see its answers

Times are wall-clock seconds: a soak outlives the process.
"""

from collections import deque
from collections.abc import Mapping
from enum import Enum, auto
from hashlib import blake2b
from typing import Any, Final, Literal

import msgspec

from headgate.config.models import ModelConfig
from headgate.policy.rollout.verdict import Judge, Verdict, VerdictRow, VersionSample

Mode = Literal["canary", "split", "blue_green", "shadow"]
HISTORY: Final = 50


class Stage(Enum):
    STABLE = "stable"
    """The configured weights hold."""
    CANARY = "canary"
    SOAKING = "soaking"
    """Proven fine, and watched at the last step until the soak time is over."""
    HELD = "held"
    """Not enough evidence: an operator must decide."""
    SPLIT = "split"
    SHADOW = "shadow"
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled_back"


class RolloutEvent(Enum):
    WORSE = auto()
    FINE = auto()
    UNSURE = auto()
    """The request limit is reached, and the config says to roll back."""
    UNDECIDED = auto()
    """The request limit is reached, and the config says to hold."""
    SOAKED = auto()
    PROMOTE = auto()
    """An operator promoted the version."""
    ROLLBACK = auto()


_HOME, _GO, _SOAK, _HELD, _SPLIT, _COPY, _ALL, _BACK = Stage
NEXT: Final[dict[Stage, tuple[Stage, ...]]] = {
    # Next stage on     WORSE   FINE    UNSURE  UNDECIDED  SOAKED  PROMOTE ROLLBACK
    Stage.STABLE:      (_HOME,  _HOME,  _HOME,  _HOME,     _HOME,  _HOME,  _HOME),
    Stage.CANARY:      (_BACK,  _SOAK,  _BACK,  _HELD,     _GO,    _ALL,   _BACK),
    Stage.SOAKING:     (_BACK,  _SOAK,  _SOAK,  _SOAK,     _ALL,   _ALL,   _BACK),
    Stage.HELD:        (_BACK,  _HELD,  _HELD,  _HELD,     _HELD,  _ALL,   _BACK),
    Stage.SPLIT:       (_SPLIT, _SPLIT, _SPLIT, _SPLIT,    _SPLIT, _ALL,   _BACK),
    Stage.SHADOW:      (_COPY,  _COPY,  _COPY,  _COPY,     _COPY,  _ALL,   _BACK),
    Stage.PROMOTED:    (_ALL,   _ALL,   _ALL,   _ALL,      _ALL,   _ALL,   _BACK),
    Stage.ROLLED_BACK: (_BACK,  _BACK,  _BACK,  _BACK,     _BACK,  _BACK,  _BACK),
}  # fmt: skip
"""The next stage, by stage and in the order of RolloutEvent. Only an operator ends a split or a shadow, or undoes a
promotion: after a promotion no baseline runs beside the version for comparison."""
UNDER_WAY: Final = frozenset((Stage.CANARY, Stage.SOAKING, Stage.HELD, Stage.SPLIT, Stage.SHADOW))
FIRST: Final[dict[Mode, Stage]] = {
    "canary": Stage.CANARY,
    "split": Stage.SPLIT,
    "blue_green": Stage.PROMOTED,
    "shadow": Stage.SHADOW,
}


def next_stage(stage: Stage, happened: RolloutEvent) -> Stage:
    return NEXT[stage][_COLUMN[happened]]


_COLUMN: Final = {happened: index for index, happened in enumerate(RolloutEvent)}


class TrafficSplit(msgspec.Struct, frozen=True):
    """The versions' shares of the requests. A value: swapping it for another is one assignment."""

    weights: tuple[tuple[str, float], ...]
    """Weights of the versions that are not being tried out; they add up to 1."""
    candidate: str | None = None
    share: float = 0.0

    def pick(self, digest: bytes) -> tuple[str, float]:
        """The version and its share of all requests, drawn with 16 bytes of hash."""
        if self.candidate is not None and int.from_bytes(digest[:8]) < self.share * 2**64:
            return self.candidate, self.share
        # With other bytes: among the old versions every session stays where it was, however large the share becomes.
        left = int.from_bytes(digest[8:16]) / 2**64
        rest = 1.0 - self.share
        for version, weight in self.weights:
            left -= weight
            if left < 0:
                return version, weight * rest
        version, weight = self.weights[-1]
        return version, weight * rest

    def others(self, drawn: str, digest: bytes) -> tuple[str, ...]:
        """Versions that may answer while no replica of the drawn one is usable: first the stable one that this request
        would have without the candidate, then the other stable ones, then the candidate."""
        stable = TrafficSplit(self.weights).pick(digest)[0]
        order = [stable, *[version for version, _ in self.weights if version != stable]]
        if self.candidate is not None and self.share > 0:
            order.append(self.candidate)
        return tuple([version for version in order if version != drawn])


def digest_of(name: str, key: str) -> bytes:
    """The hash of a session or tenant, independent for each public name, so that new versions are not always tried on
    the same sessions first."""
    return blake2b(key.encode("utf-8", "surrogateescape"), digest_size=16, key=name.encode()[:64]).digest()


class RolloutStep(msgspec.Struct, frozen=True):
    """One step of a rollout: what was done, when and why."""

    at: float
    stage: str
    share: float
    reason: str


class No(msgspec.Struct, frozen=True):
    """A command that cannot be carried out."""

    why: str


class Rollout:
    """The rollout of one public name with versions."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.stage = Stage.STABLE
        self.mode: Mode = "canary"
        self.candidate: str | None = None
        self.share = 0.0
        self.since = 0.0
        """When the stage or step began."""
        self.reached = 1.0
        """Share of the requests that the tried version's replicas can hold by now: its own share waits for them."""
        self.history: deque[RolloutStep] = deque(maxlen=HISTORY)
        self.judge: Judge | None = None
        """The comparison of both versions; None: there is nothing to compare."""
        self.verdict: Verdict | None = None
        self._weights = _shares({version.name: version.weight for version in config.versions})
        self._step = 0
        self._step_from = (0, 0)
        """Requests of both versions, and of the canary, when the step began."""

    # -- who gets what -------------------------------------------------------------------------------------

    @property
    def split(self) -> TrafficSplit:
        weights = self._weights
        climbs = self.stage is Stage.PROMOTED and self.reached < 1.0
        if self.stage is Stage.PROMOTED and self.candidate is not None and not climbs:
            weights = {self.candidate: 1.0}
        trying = climbs or (self.stage in UNDER_WAY and self.stage is not Stage.SHADOW)
        others = _shares({name: weight for name, weight in weights.items() if name != self.candidate})
        if not trying or self.candidate is None or not others:
            return TrafficSplit(tuple(weights.items()))
        return TrafficSplit(tuple(others.items()), self.candidate, min(self.share, self.reached))

    @property
    def planned(self) -> dict[str, float]:
        """The share that each version's replicas are to have room for, by its model: the tried version's grow before
        it gets more requests, and after a rollback the others' grow at once."""
        split = self.split
        shares = {version: weight * (1.0 - split.share) for version, weight in split.weights}
        if split.candidate is not None:
            shares[split.candidate] = self.share
        models = {version.name: version.model for version in self.config.versions}
        return {models[version]: share for version, share in shares.items()}

    def hold(self, share: float) -> None:
        """Keeps the tried version at this share until `climb` says that its replicas hold more."""
        self.reached = share

    def climb(self, holds: float) -> bool:
        """Takes in the share of the requests that the tried version's replicas can hold by now. Returns whether its
        share changes: it only grows."""
        before = self.split
        self.reached = max(self.reached, min(1.0, holds))
        return self.split != before

    @property
    def shadow(self) -> tuple[str, float] | None:
        """The version that gets copies, and the share of requests that are copied; None: no shadow runs."""
        return (self.candidate, self.share) if self.stage is Stage.SHADOW and self.candidate is not None else None

    # -- what people say -----------------------------------------------------------------------------------

    def start(self, version: str, mode: Mode, share: float | None, now: float) -> RolloutStep | No:
        """Starts to try out a version. `share`: the share of a split or a shadow; None: the config's."""
        config, names = self.config, [one.name for one in self.config.versions]
        if version not in names:
            return No(f"{config.name} has no version {version}; there is {', '.join(names)}")
        if self.stage in UNDER_WAY:
            return No(f"{self.candidate} of {config.name} is being tried out: promote it or roll it back first")
        if self.stage is Stage.PROMOTED and self.candidate is not None:
            self._weights = {self.candidate: 1.0}  # a promoted version is what a later rollback returns to
        if self._weights.get(version, 0.0) >= 1.0:
            return No(f"{version} has all requests already")
        if mode == "shadow" and self._weights.get(version, 0.0) > 0:
            return No(f"{version} serves clients: only a version without a weight can be shadowed")
        if mode == "canary" and self._weights.get(version, 0.0) > 0:
            return No(f"{version} has {self._weights[version]:.0%} already: start a split, or set its weight to 0")
        if share is not None and (mode in ("canary", "blue_green") or not 0 < share < 1):
            return No("a share is for a split or a shadow, above 0 and below 1; a canary goes by canary.steps")
        self.mode, self.candidate, self._step, self.reached = mode, version, 0, 1.0
        first = {
            "canary": config.canary.steps[0],
            "split": config.canary.steps[0] if share is None else share,
            "blue_green": 1.0,
            "shadow": config.shadow.share if share is None else share,
        }
        self._compare_anew(first[mode])
        return self._note(FIRST[mode], first[mode], f"{version} started as {mode.replace('_', '-')}", now)

    def promote(self, now: float) -> RolloutStep | No:
        if self.stage not in UNDER_WAY:
            return No(f"nothing of {self.config.name} is being tried out")
        return self._go(RolloutEvent.PROMOTE, "promoted by hand", now)

    def rollback(self, now: float) -> RolloutStep | No:
        if self.stage not in UNDER_WAY and self.stage is not Stage.PROMOTED:
            return No(f"there is nothing to roll back: {self.config.name} is {self.stage.value.replace('_', ' ')}")
        return self._go(RolloutEvent.ROLLBACK, "rolled back by hand", now)

    # -- what is seen --------------------------------------------------------------------------------------

    def take(self, sample: VersionSample) -> None:
        if self.judge is not None:
            self.judge.take(sample)

    def score(self, canary: bool, score: float) -> None:
        """Takes the score of an answer of the version that is tried out, or of the one beside it."""
        if self.judge is not None:
            self.judge.score(canary, score)

    def look(self, now: float) -> RolloutStep | None:
        """The step that follows from the samples so far; None: no change."""
        judge, canary = self.judge, self.config.canary
        if judge is None:
            return None
        if judge.news:
            self.verdict = judge.verdict()
            if self.verdict.state == "worse" and next_stage(self.stage, RolloutEvent.WORSE) is not self.stage:
                return self._go(RolloutEvent.WORSE, self.verdict.reason, now)
        if self.stage is Stage.SOAKING:
            return self._go(RolloutEvent.SOAKED, "soaked", now) if now - self.since >= canary.soak_s else None
        if self.stage is not Stage.CANARY:
            return None
        last = self._step == len(canary.steps) - 1
        if last and self.verdict is not None and self.verdict.state == "fine":
            # The soak counts from the start of the last step: proving and soaking overlap.
            return self._go(RolloutEvent.FINE, self.verdict.reason, now, since=self.since)
        if judge.requests >= canary.limit_requests:
            why = "no request of it has ended" if self.verdict is None else self.verdict.reason
            reason = f"not enough evidence after {judge.requests} requests: {why}"
            return self._go(
                RolloutEvent.UNSURE if canary.when_unsure == "rollback" else RolloutEvent.UNDECIDED, reason, now
            )
        if not last and self._step_is_over(judge):
            self._step += 1
            return self._next_step(judge, canary.steps[self._step], now)
        return None

    def rows(self) -> list[VerdictRow]:
        return [] if self.judge is None else self.judge.rows()

    # -- across restarts -----------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        return {
            "stage": self.stage.value,
            "mode": self.mode,
            "candidate": self.candidate,
            "share": self.share,
            "since": self.since,
            "step": self._step,
            "weights": self._weights,
            "history": [msgspec.to_builtins(step) for step in self.history],
        }

    def restore(self, kept: Mapping[str, Any]) -> str | None:
        """Continues a rollout after a restart. Samples are not kept, so a step may take longer. Returns why it cannot
        be continued; None: it was."""
        try:
            known = {version.name for version in self.config.versions}
            weights = {str(name): float(weight) for name, weight in kept["weights"].items()}
            candidate, step = kept["candidate"], int(kept["step"])
            history = [msgspec.convert(one, RolloutStep) for one in kept["history"]]
            stage, mode = Stage(kept["stage"]), msgspec.convert(kept["mode"], Mode)
            share, since = float(kept["share"]), float(kept["since"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return f"what was kept of {self.config.name} can't be read: {error}"
        gone = {*weights, *([candidate] if candidate is not None else [])} - known
        if gone or not any(weights.values()):
            return f"versions of {self.config.name} have changed: {', '.join(sorted(gone)) or 'none has a weight'}"
        self._weights, self.candidate, self.stage, self.mode = weights, candidate, stage, mode
        self.share, self.since = share, since
        self._step = min(step, len(self.config.canary.steps) - 1)
        self.history.extend(history)
        if stage in UNDER_WAY:
            self._compare_anew(share)
        return None

    # ------------------------------------------------------------------------------------------------------

    def _compare_anew(self, share: float) -> None:
        self.judge, self.verdict, self._step_from = Judge(self.config.canary), None, (0, 0)
        canary = self.config.canary
        last = self._step == len(canary.steps) - 1
        self.judge.step(share, canary.limit_requests if last else None)

    def _step_is_over(self, judge: Judge) -> bool:
        requests, samples = self._step_from
        canary = self.config.canary
        return (
            judge.requests - requests >= canary.step_requests
            and judge.canary_requests - samples >= canary.min_samples
        )  # fmt: skip

    def _next_step(self, judge: Judge, share: float, now: float) -> RolloutStep:
        canary = self.config.canary
        self._step_from = (judge.requests, judge.canary_requests)
        last = self._step == len(canary.steps) - 1
        judge.step(share, canary.limit_requests - judge.requests if last else None)
        return self._note(self.stage, share, f"no harm seen in {judge.canary_requests} of its requests", now)

    def _go(self, happened: RolloutEvent, reason: str, now: float, since: float | None = None) -> RolloutStep:
        stage = next_stage(self.stage, happened)
        share = {Stage.PROMOTED: 1.0, Stage.ROLLED_BACK: 0.0}.get(stage, self.share)
        return self._note(stage, share, reason, now, since)

    def _note(self, stage: Stage, share: float, reason: str, now: float, since: float | None = None) -> RolloutStep:
        self.stage, self.share, self.since = stage, share, now if since is None else since
        if stage not in UNDER_WAY:
            self.judge = None if self.mode == "blue_green" or stage is Stage.STABLE else self.judge
        step = RolloutStep(now, stage.value, share, reason)
        self.history.append(step)
        return step


def _shares(weights: Mapping[str, float]) -> dict[str, float]:
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items() if weight > 0}
