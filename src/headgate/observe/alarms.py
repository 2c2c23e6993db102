"""Does anybody have to know? Reads the figures once a second, and says what has changed: log, webhook, /admin/slo."""

import logging
from collections import deque
from collections.abc import Iterator
from math import inf
from typing import Any, Protocol

import msgspec

from headgate.gateway.account import Account
from headgate.model.clock import Clock
from headgate.model.gateway_config import ObserveConfig
from headgate.model.replica import Load, ReplicaId
from headgate.observe.webhook import Webhook
from headgate.policy.alert import Change, Severity
from headgate.policy.dispatcher import Dispatcher
from headgate.policy.slo import Asked, Known, LaneReading, Reading, Slo, Tail, asks

log = logging.getLogger(__name__)

LEVELS = {Severity.OK: logging.INFO, Severity.WARNING: logging.WARNING, Severity.CRITICAL: logging.ERROR}
LANES_A_LOOK = 4
"""Of more lanes, only so many are read at a time, in turn: a look stays short, and seconds decide nothing here."""
START_S = 60.0
"""Replicas that come into use this soon after the first one were there before us, or started with us."""
COUNT_EVERY_S = 5.0
"""How often all requests of five minutes are counted: they are added up lane by lane and part by part."""
RECENT = 100
"""Changes kept for the page."""
WINDOWS = {300: "5m", 1800: "30m", 3600: "1h", 21_600: "6h"}

_encode = msgspec.json.Encoder().encode


class Sketch(Protocol):
    @property
    def count(self) -> int: ...
    def quantile(self, q: float, /) -> float | None: ...


class Counts(Protocol):
    @property
    def requests(self) -> int: ...
    @property
    def cold(self) -> int: ...


class Figures(Protocol):
    """What is asked of figures.py here."""

    def sketch(self, figure: str, window_s: int, now: float, *, lane: str | None = None) -> Sketch: ...
    def counts(self, window_s: int, now: float, *, lane: str | None = None) -> Counts: ...


class Alarms:
    def __init__(
        self,
        figures: Figures,
        dispatcher: Dispatcher,
        account: Account,
        observe: ObserveConfig,
        wall: Clock,
        webhook: Webhook | None = None,
    ) -> None:
        self.slo = Slo(dispatcher.lanes, observe)
        self.recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        """Changes, the latest last."""
        self._figures = figures
        self._dispatcher = dispatcher
        self._account = account
        self._observe = observe
        self._wall = wall
        self._webhook = webhook
        self._now = 0.0
        self._turn = 0
        self._count_at = -inf
        self._last_minutes: Counts
        self._counted: dict[str, tuple[int, int]] = {}
        """By lane, all and failed, when it was last read."""
        self._in_use: dict[ReplicaId, Load] = {}
        self._first_at: float | None = None

    def look(self, now: float) -> list[Change]:
        self._now = now
        changes = self.slo.reconfigure(self._dispatcher.lanes, now)
        changes += self.slo.on(self._read(now), now)
        for change in changes:
            self._tell(change)
        return changes

    async def close(self) -> None:
        if self._webhook is not None:
            await self._webhook.close()

    # -- reading -----------------------------------------------------------------------------------------

    def _read(self, now: float) -> Reading:
        loads = [load for load in self._dispatcher.fleet.loads.values() if load.usable > 0]
        waiting = sum(self._dispatcher.waiting(name) for name in self._dispatcher.lanes)
        if now >= self._count_at:
            self._count_at = now + COUNT_EVERY_S
            self._last_minutes = self._figures.counts(300, now)
        ended = self._ended()
        self._dispatcher.use.look(now)
        use = self._dispatcher.use.read()
        return Reading(
            lanes={name: self._read_lane(name, ended.get(name, (0, 0)), now) for name in self._whose_turn()},
            waiting_per_replica=waiting / max(1, len(loads)),
            utilisation=use.largest,
            binding=use.binding,
            cold=self._last_minutes.cold,
            cold_of=self._last_minutes.requests,
            joined=tuple(self._joined(loads, now)),
        )

    def _whose_turn(self) -> list[str]:
        names = list(self._dispatcher.lanes)
        turns = -(-len(names) // LANES_A_LOOK)
        self._turn = (self._turn + 1) % turns
        return names[self._turn :: turns]

    def _ended(self) -> dict[str, tuple[int, int]]:
        """By lane, how many requests have ended since the start, and how many of them failed."""
        ended: dict[str, tuple[int, int]] = {}
        for (lane, outcome), count in self._account.ended.items():
            requests, failed = ended.get(lane, (0, 0))
            ended[lane] = (requests + count, failed + count * (outcome.kind == "failed"))
        return ended

    def _read_lane(self, name: str, ended: tuple[int, int], now: float) -> LaneReading:
        sketches: dict[tuple[str, int], Sketch] = {}

        def sketch_of(figure: str, window_s: int) -> Sketch:
            if (figure, window_s) not in sketches:
                sketches[figure, window_s] = self._figures.sketch(figure, window_s, now, lane=name)
            return sketches[figure, window_s]

        tails: dict[Asked, Tail] = {}
        for figure, percentile, window_s in asks(self._dispatcher.lanes[name]):
            value = sketch_of(figure, window_s).quantile(percentile / 100)
            # Of gaps: how many requests they are of, not how many tokens.
            count = sketch_of("tpot" if figure == "gap" else figure, window_s).count
            tails[figure, percentile, window_s] = Tail(value, count)
        before = self._counted.get(name, (0, 0))
        self._counted[name] = ended
        return LaneReading(tails=tails, requests=ended[0] - before[0], failed=ended[1] - before[1])

    def _joined(self, loads: list[Load], now: float) -> Iterator[str]:
        """Replicas that came into use since the last look: new ones, and those that were out and are back."""
        before, self._in_use = self._in_use, {load.id: load for load in loads}
        if self._first_at is None:
            self._first_at = now if loads else None
        elif now - self._first_at > START_S:
            for load in loads:
                if before.get(load.id) is not load:
                    version = load.replica.tags.get("version", "")
                    yield f"{load.id} (version {version})" if version else load.id

    # -- telling -----------------------------------------------------------------------------------------

    def _tell(self, change: Change) -> None:
        where = f" of lane {change.lane}" if change.lane else ""
        was, severity = change.was.value, change.severity.value
        log.log(LEVELS[change.severity], "alert %s%s: %s → %s: %s", change.alert, where, was, severity, change.message)
        at = self._wall()
        news = {
            "alert": change.alert,
            "lane": change.lane,
            "was": was,
            "severity": severity,
            "value": change.value,
            "bound": change.bound,
            "since": at - (change.at - change.since),
            "at": at,
            "message": change.message,
        }
        self.recent.append(news)
        if self._webhook is not None:
            # `text` is what chat services show of a message posted to them.
            text = f"{severity.upper()}: {change.alert}{where}: {change.message}"
            self._webhook.post(_encode({**news, "text": text}))

    def state(self) -> dict[str, Any]:
        """As of the last look, for /admin/slo and the page: JSON when encoded."""
        state, webhook = self.slo.state(self._now), self._webhook
        return {
            "worst": state.worst.value,
            "promises": [
                {
                    "lane": known.lane,
                    "figure": promise.figure,
                    "percentile": promise.percentile,
                    "within_s": promise.within_s,
                    "state": known.severity.value,
                    "value_s": known.value,
                    "count": known.count,
                    "since_s": self._since_s(known),
                    "message": known.message,
                }
                for promise, known in state.promises
            ],
            "alerts": [self._as_dict(known) for known in state.raised],
            "watched": [self._as_dict(known) for known in state.alerts],
            "availability": self._observe.availability,
            "burn": {
                lane: {WINDOWS[window_s]: rate for window_s, rate in rates.items()}
                for lane, rates in state.burns.items()
            },
            "usual_ttft_s": state.usual_ttft_s,
            "recent": list(self.recent),
            "webhook": None
            if webhook is None
            else {
                "host": webhook.host,
                "sent": webhook.sent,
                "failed": webhook.failed,
                "dropped": webhook.dropped,
                "waiting": webhook.waiting,
                "last_error": webhook.last_error,
            },
        }

    def _as_dict(self, known: Known) -> dict[str, Any]:
        return {
            "name": known.alert,
            "lane": known.lane,
            "severity": known.severity.value,
            "value": known.value,
            "bound": known.bound,
            "since_s": self._since_s(known),
            "message": known.message,
        }

    def _since_s(self, known: Known) -> float | None:
        return None if known.since is None else self._now - known.since
