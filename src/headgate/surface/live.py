"""Feeds the page at `/` with what is happening right now: server-sent events on GET /admin/live.

Each event is one JSON object with one key:

    {"history": History}    first, and again every few seconds with the last minute's slices
    {"snapshot": Snapshot}  at once, then every second

    Snapshot  verdict    level (ok | idle | warning | critical) and text: one line that says whether all is well
              now (wall seconds), version, uptime_s, keyed (no client is served without a key)
              outage     why nothing can be answered; empty: something can
              lanes      name, waiting, running, requests_per_s, refused_per_s, failed_per_s, cache_hit_rate or null
                         state (idle | unknown | ok | warning | critical) and badge: the worst of latency, failures
                         and refusals, in a few words
                         asked, availability (null: no request asked) over 60 s
                         figures   ttft, tpot, gap, e2e, queue, ttft_cold, ttft_warm: each p50, p90, p95, p99, p999 in
                                   seconds or null, over 60 s, of the served
                         arrivals  ttft, tpot, e2e: the same of all arrivals, or `missed`: of one without an answer
                         promises  figure, percentile, within_s, state (as of lanes)
                         little    l, lambda, w, residual
              replicas   id, kind or null, condition (up | starting | waking | parked | asleep | down),
                         state (starting | warming | failed: its warm-up; then up | ramping |
                         probation | ejected | down; or parked), usable (share of its room), requests, limit, tokens,
                         kv_ratio or null, batch_size or null, emulated, version, model, gpu_type, since_s, why,
                         lifecycle (see policy/scaling/lifecycle.py, in lower case) or null for a replica that the
                         gateway does not start and stop
              fleet      null, or wanted (serving, parked), reasons, notes: the last decisions, each wall, kind, text,
                         reasons
              batches    trouble of their folder, and each batch that is not over: see batches/admin.py, news
              rollouts   for each public name with versions: see upkeep/rollouts.py, status
              shared     null, or connected, gateways, part: what gateways share
              alerts     name, lane, severity, value, bound, message, since_s
              findings   severity, lane (may be empty), figure, cause, knob, evidence
              troubles   alerts and findings as one list: severity (critical | warning | note), lane, subject, text,
                         cause, knob, since_s or null, alerts (their names), evidence
              slowest    id, lane, tenant, ttft_s or null, e2e_s, outcome, headline, ago_s, strain (its time as a
                         multiple of its lane's promise; the largest first)
              totals     requests, requests_per_s, failed_per_s, refused_per_s, tokens_per_s, utilisation and
                         utilisation_by resource, loop_lag_p99_s, cost_per_million_tokens or null, currency, asked,
                         availability,
                         ended_early (since the start, by cap, repetition or time: answers, saved_tokens)
    History   lanes      name → Slices, oldest first
              bands      upper ends of the heat map's bands, in seconds; one more band takes longer times
              range      10m; /admin/history has 1h and 24h as well. step_s and slices: length of a slice, and how many
    Slice     at (wall seconds at which it began), requests, failed, refused,
              ttft, tpot, e2e, queue, gap: each [p50, p95, p99] in seconds or null
              heat, heat_e2e: numbers of first tokens, and of whole answers, by band, fastest first

A snapshot is made and encoded once for all viewers, and not at all while there is none.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from headgate.model.clock import Clock
from headgate.model.errors import EngineFailed, Refused
from headgate.model.outcome import Outcome
from headgate.wire.exchange import Exchange

log = logging.getLogger(__name__)

EVERY_S = 1.0
HISTORY_EVERY = 5
"""Ticks between two histories. A slice is 10 s long, so that viewers see it grow once."""
NEWS_S = 60.0
"""Seconds that a history after the first covers: longer than PATIENCE_S, so that no viewer misses a slice."""
VIEWERS = 32
"""Maximum viewers; more are refused: each costs a write a second, and a gateway's first duty is to its requests."""
UNSENT_BYTES = 256 * 1024
"""Unread bytes beyond which a viewer is skipped. The next snapshot says all that matters."""
PATIENCE_S = 30.0
"""Seconds after which a skipped viewer is dropped: a laptop that went to sleep must not keep its place."""

_encode = msgspec.json.Encoder().encode

Maker = Callable[[float], dict[str, Any]]


class Live:
    def __init__(self, snapshot: Maker, history: Maker, clock: Clock) -> None:
        self._snapshot = snapshot
        self._history = history
        self._clock = clock
        self._viewers: dict[Exchange, float] = {}
        """When each viewer was last found reading."""
        self._timer: asyncio.TimerHandle | None = None
        self._ticks = 0
        self._closed = False

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    def watch(self, exchange: Exchange) -> None:
        """The handler of /admin/live. It checks no key: the caller guards it as the rest of /admin."""
        if exchange.method == "HEAD":
            exchange.respond(200, b"", "text/event-stream")
            return
        if self._closed:
            raise Refused("the gateway is shutting down", Outcome.NOT_READY, EVERY_S)
        if len(self._viewers) >= VIEWERS:
            message = f"{VIEWERS} pages are watching already: close one, or read /metrics"
            raise Refused(message, Outcome.QUEUE_FULL, 10.0)
        now = self._clock()
        first = [_history(self._history(now)), self._encoded(now)]
        exchange.stream()
        exchange.on_gone = lambda: self._left(exchange)
        exchange.events(first)
        self._viewers[exchange] = now
        if self._timer is None:
            self._set_timer()

    def close(self) -> None:
        """Ends every viewer's stream, so that no page waits for a gateway that shuts down."""
        self._closed = True
        for exchange in tuple(self._viewers):
            exchange.end()
        self._viewers.clear()
        self._stop()

    # -- every second --------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = self._clock()
        self._ticks += 1
        try:
            batch = [self._encoded(now)]
            if self._ticks % HISTORY_EVERY == 0:
                batch.insert(0, _history(_latest(self._history(now))))
        except Exception:
            # Reported once, to the log and to all viewers: they reconnect, and see whether it still fails.
            log.exception("the page's figures could not be made")
            for exchange in tuple(self._viewers):
                exchange.fail(EngineFailed("the figures could not be made; see the gateway's log"))
            self._viewers.clear()
            self._timer = None
            return
        for exchange, read_at in tuple(self._viewers.items()):
            if exchange.unsent <= UNSENT_BYTES:
                self._viewers[exchange] = now
                exchange.events(batch)
            elif now - read_at > PATIENCE_S:
                exchange.abort()
        self._set_timer()

    def _encoded(self, now: float) -> bytes:
        return b'{"snapshot":%b}' % _encode(self._snapshot(now))

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._tick)

    def _left(self, exchange: Exchange) -> None:
        self._viewers.pop(exchange, None)
        if not self._viewers:
            self._stop()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _history(history: dict[str, Any]) -> bytes:
    return b'{"history":%b}' % _encode(history)


def _latest(history: dict[str, Any]) -> dict[str, Any]:
    lanes: dict[str, list[dict[str, Any]]] = history["lanes"]
    since = max((slices[-1]["at"] for slices in lanes.values() if slices), default=0.0) - NEWS_S
    return {**history, "lanes": {name: [s for s in slices if s["at"] >= since] for name, slices in lanes.items()}}
