"""Carries rollouts out: feeds them with ended requests, swaps the table of versions, and keeps their state over a
restart."""

import json
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from headgate.config.models import ModelConfig
from headgate.gateway.intake.models import Entry, Models, Table
from headgate.gateway.shadow import Shadows
from headgate.model.clock import Clock
from headgate.model.errors import StartupError
from headgate.model.outcome import Outcome
from headgate.model.record import Record
from headgate.policy.rollout.rollout import Mode, No, Rollout, RolloutStep, Stage
from headgate.policy.rollout.verdict import NOT_ITS_DOING, VersionSample, sample_of
from headgate.upkeep.scorer import Scorer
from headgate.upkeep.scores import ScoreBook

log = logging.getLogger(__name__)


class Rollouts:
    def __init__(
        self,
        configs: Sequence[ModelConfig],
        models: Models,
        shadows: Shadows,
        state: Path | None,
        wall: Clock,
        clock: Clock,
    ) -> None:
        """Raises StartupError if the kept state can't be used."""
        self._clock = clock
        self._configs = tuple(configs)
        self._models = models
        self._shadows = shadows
        self._state = state
        self._wall = wall
        self._rollouts = {config.name: Rollout(config) for config in configs if config.versions}
        self._books = {name: ScoreBook() for name in self._rollouts}
        self._scorers: dict[str, Scorer] = {}
        self._holds: Callable[[Sequence[str], str], float] | None = None
        """The share of the requests for these models that one model's replicas can hold; None: they are not scaled
        here, and a version's share is never held back."""
        self._set_scorers()
        shadows.report_to(self._take_shadow)
        if state is not None:
            for name, kept in read_state(state).items():
                self._restore(name, kept)
        models.swap(self._table())

    @property
    def names(self) -> list[str]:
        return list(self._rollouts)

    # -- what the operator says ----------------------------------------------------------------------------

    def start(self, name: str, version: str, mode: Mode, share: float | None) -> RolloutStep | No:
        rollout = self._rollouts[name]
        targets = {one.name: one.model for one in rollout.config.versions}
        if version in targets and not self._models.room(targets[version]).limit:
            return No(f"no replica serves {targets[version]} right now: start one before version {version} is tried")
        said = rollout.start(version, mode, share, self._wall())
        if isinstance(said, RolloutStep):
            self._books[name].clear()
            self._begin_climb(rollout, 0.0)
        return self._said(rollout, said)

    def promote(self, name: str) -> RolloutStep | No:
        rollout = self._rollouts[name]
        before = rollout.split.share
        said = rollout.promote(self._wall())
        if isinstance(said, RolloutStep):
            self._begin_climb(rollout, before)
        return self._said(rollout, said)

    def rollback(self, name: str) -> RolloutStep | No:
        return self._said(self._rollouts[name], self._rollouts[name].rollback(self._wall()))

    def score(self, name: str, scores: Sequence[tuple[str | None, str | None, float]]) -> tuple[int, int] | No:
        """Takes scores, each of a request or of a version. Returns how many were taken, and how many were of requests
        or versions that are not known here."""
        rollout, book = self._rollouts[name], self._books[name]
        if rollout.config.canary.quality is None:
            return No(f"no scores are asked for of {name}: give models[].canary.quality in the config")
        if rollout.judge is None:
            return No(f"nothing of {name} is being tried out")
        taken = 0
        for request_id, version, score in scores:
            canary = book.whose(request_id) if request_id is not None else self._side(rollout, book, version)
            if canary is not None:
                rollout.score(canary, score)
                taken += 1
        return taken, len(scores) - taken

    @staticmethod
    def _side(rollout: Rollout, book: ScoreBook, version: str | None) -> bool | None:
        """Whether a version is the one that is tried out. None: it is not compared at all."""
        split = rollout.split
        if version == rollout.candidate:
            return True
        if version in dict(split.weights):
            return False
        book.count_unknown()
        return None

    def _said(self, rollout: Rollout, said: RolloutStep | No) -> RolloutStep | No:
        if isinstance(said, RolloutStep):
            _log(rollout, said, logging.INFO)
            self._publish(rollout, said)
        return said

    # -- what is seen --------------------------------------------------------------------------------------

    def take(self, records: Sequence[Record], _: float) -> None:
        """Takes in requests that have ended; called a few times a second."""
        for record in records:
            rollout = self._rollouts.get(record.drawn_from)
            # Requests that came before the share was what it is are not like those that came since.
            if rollout is not None and rollout.judge is not None and record.wall >= rollout.since:
                sample = _of_baseline(record) if rollout.stage is Stage.SHADOW else None
                if record.fell_back:  # the request says nothing about the version that helped out
                    canary = record.fell_back == rollout.candidate
                    sample = VersionSample(canary, failed=True) if record.outcome not in NOT_ITS_DOING else None
                else:
                    sample = sample or sample_of(record, record.version == rollout.candidate)
                if sample is not None:
                    rollout.take(sample)
                if record.outcome is Outcome.COMPLETED and not record.fell_back:
                    self._books[record.drawn_from].answered(record.id, record.version == rollout.candidate)
        now = self._wall()
        for rollout in self._rollouts.values():
            if rollout.reached < 1.0 and rollout.climb(self._held(rollout)):
                self._models.swap(self._table())
            before = rollout.split.share
            step = rollout.look(now)
            if step is not None:
                self._begin_climb(rollout, before)
                worse = step.stage == Stage.ROLLED_BACK.value
                _log(rollout, step, logging.WARNING if worse else logging.INFO)
                self._publish(rollout, step)

    def wait_for(self, holds: Callable[[Sequence[str], str], float]) -> None:
        """A version's share waits for its replicas: `holds` returns the share of the requests for these models that one
        model's replicas can hold."""
        self._holds = holds

    def plans(self) -> list[dict[str, float]]:
        """For each rollout, the share of its requests that each version's model is to have room for."""
        return [rollout.planned for rollout in self._rollouts.values()]

    def _begin_climb(self, rollout: Rollout, share: float) -> None:
        """The tried version goes on from this share, as its replicas come."""
        if self._holds is not None and rollout.share > share:
            rollout.hold(share)
            rollout.climb(self._held(rollout))

    def _held(self, rollout: Rollout) -> float:
        models = {version.name: version.model for version in rollout.config.versions}
        if self._holds is None or rollout.candidate is None:
            return 1.0
        return self._holds(tuple(models.values()), models[rollout.candidate])

    def _take_shadow(self, name: str, sample: VersionSample) -> None:
        rollout = self._rollouts.get(name)
        if rollout is not None and rollout.stage is Stage.SHADOW:
            rollout.take(sample)

    def _take_scores(self, name: str, scores: dict[str, float]) -> None:
        """Takes what a scorer said of both versions' answers to one request."""
        rollout = self._rollouts.get(name)
        if rollout is not None and rollout.stage is Stage.SHADOW:
            for version, score in scores.items():
                rollout.score(version == rollout.candidate, score)

    def _set_scorers(self) -> None:
        """Builds the scorers of the configs. One whose settings are the same keeps its counts."""
        before, self._scorers = self._scorers, {}
        for name, rollout in self._rollouts.items():
            quality = rollout.config.canary.quality
            if quality is not None and quality.scorer is not None:
                old = before.get(name)
                same = old is not None and old.config == quality.scorer
                new = Scorer(name, quality.scorer, self._take_scores, self._clock)
                self._scorers[name] = old if old is not None and same else new
        for name, scorer in before.items():
            if self._scorers.get(name) is not scorer:
                scorer.close()
        self._shadows.score_with(self._scorers)

    # -- for the page and the command ----------------------------------------------------------------------

    def status(self) -> list[dict[str, Any]]:
        return [self._status(rollout) for rollout in self._rollouts.values()]

    def _status(self, rollout: Rollout) -> dict[str, Any]:
        split, verdict, judge = rollout.split, rollout.verdict, rollout.judge
        shares = {version: weight * (1.0 - split.share) for version, weight in split.weights}
        if split.candidate is not None:
            shares[split.candidate] = split.share
        versions = []
        for version in rollout.config.versions:
            room = self._models.room(version.model)
            versions.append(
                {
                    "name": version.name,
                    "model": version.model,
                    "share": shares.get(version.name, 0.0),
                    "room": room.limit,
                    "running": room.used,
                    "waiting": room.waiting,
                }
            )
        canary = rollout.config.canary
        now = self._wall()
        return {
            "name": rollout.config.name,
            "stage": rollout.stage.value,
            "mode": rollout.mode,
            "candidate": rollout.candidate,
            "share": rollout.share,
            "since_s": now - rollout.since if rollout.since else None,
            "soak_left_s": max(0.0, rollout.since + canary.soak_s - now) if rollout.stage is Stage.SOAKING else None,
            "requests": 0 if judge is None else judge.requests,
            "samples": 0 if judge is None else judge.canary_requests,
            "limit_requests": canary.limit_requests,
            "verdict": None if verdict is None else verdict,
            "rows": rollout.rows(),
            "scores": self._scores(rollout),
            "versions": versions,
            "shadow": self._shadows.counts(rollout.config.name) if rollout.mode == "shadow" else None,
            "history": list(rollout.history)[-10:],
        }

    def _scores(self, rollout: Rollout) -> dict[str, Any] | None:
        """Scores that have come; None: none are asked for, or nothing is compared."""
        counts = None if rollout.judge is None else rollout.judge.scores
        if counts is None:
            return None
        name = rollout.config.name
        scorer = self._scorers.get(name)
        by_scorer = {} if scorer is None else {"scorer": scorer.counts()}
        return {"canary": counts[0], "baseline": counts[1], "unknown": self._books[name].unknown, **by_scorer}

    # -- config and restarts -------------------------------------------------------------------------------

    def reconfigure(self, configs: Sequence[ModelConfig]) -> None:
        """Applies new configs. Rollouts whose config is the same go on as they are; the others as far as their versions
        are still there."""
        before, self._configs = self._rollouts, tuple(configs)
        self._rollouts = {}
        for config in configs:
            if config.versions:
                old = before.get(config.name)
                same = old is not None and old.config == config
                self._rollouts[config.name] = old if old is not None and same else Rollout(config)
                if old is not None and not same and old.stage is not Stage.STABLE:
                    self._restore(config.name, old.to_dict())
        self._books = {name: self._books.get(name) or ScoreBook() for name in self._rollouts}
        self._set_scorers()
        self._models.swap(self._table())
        self._save()

    def _restore(self, name: str, kept: dict[str, Any]) -> None:
        rollout = self._rollouts.get(name)
        why = "it is not configured any more" if rollout is None else rollout.restore(kept)
        if why is not None:
            log.warning("the rollout of %s starts again from the config: %s", name, why)

    def _table(self) -> Table:
        table = {config.name: Entry(config) for config in self._configs if not config.versions}
        for name, rollout in self._rollouts.items():
            targets = {version.name: version.model for version in rollout.config.versions}
            table[name] = Entry(rollout.config, rollout.split, targets, rollout.shadow)
        return table

    def _publish(self, rollout: Rollout, _: RolloutStep) -> None:
        self._models.swap(self._table())
        self._shadows.allow(rollout.config.name, rollout.config.shadow.concurrency if rollout.shadow else 0)
        self._save()

    def _save(self) -> None:
        if self._state is None:
            return
        kept = {name: one.to_dict() for name, one in self._rollouts.items() if one.stage is not Stage.STABLE}
        try:
            write_state(self._state, kept)
        except OSError as error:
            # The step is in force already: a disk that is full must not keep the operator from rolling back.
            log.error("the state of rollouts could not be written to %s: %s", self._state, error)


def _log(rollout: Rollout, step: RolloutStep, level: int) -> None:
    name, stage = rollout.config.name, step.stage
    told = {"model": name, "stage": stage, "share": step.share, "version": rollout.candidate}
    log.log(
        level, "rollout of %s: %s at %.0f %%: %s", name, stage.replace("_", " "), step.share * 100, step.reason,
        extra=told,
    )  # fmt: skip


def _of_baseline(record: Record) -> VersionSample | None:
    """The baseline's sample to compare with a shadow's, from when the request was sent: copies do not wait in the
    gateway's queue."""
    sample = sample_of(record, canary=False)
    if sample is None or sample.failed is not False:
        return sample
    at_replica_s = record.first_s + record.stream_s
    return VersionSample(False, record.first_s, record.tpot_s, at_replica_s, None, sample.output_tokens, False)


def read_state(path: Path) -> dict[str, Any]:
    try:
        kept = json.loads(path.read_bytes())
        found = kept["models"]
        if kept["schema"] != 1 or not isinstance(found, dict):
            raise ValueError(f"schema {kept['schema']}")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StartupError(f"rollout.state: can't read {path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise StartupError(f"rollout.state: {path} holds something else ({error}): move it away") from None
    return found


def write_state(path: Path, kept: dict[str, Any]) -> None:
    """Writes all of the state or nothing: a reader sees the old or the new."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        beside.write_text(json.dumps({"schema": 1, "models": kept}, indent=1))
        beside.replace(path)
    except OSError:
        with suppress(OSError):
            beside.unlink()
        raise
