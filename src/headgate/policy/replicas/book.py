"""Keeps the book of replicas: one entry for each, with its load, its room, and how much of it may be used.

All that becomes known of a replica (that it joined, answers, is parked, failed, was quick, refused a request, is shared
with other gateways) ends here in two numbers: the share of it that may be used, and the requests that it may have at
once. The book is the only writer of entries and their loads, and the route index follows each change; other code holds
ids and asks.
"""

from math import inf
from typing import Final

from headgate.model.event import Reported
from headgate.model.replica import Load, Replica, ReplicaId
from headgate.model.request import Request
from headgate.policy.replicas.allowance import room_of
from headgate.policy.replicas.entry import IndexEntry, ReplicaEntry, new_entry
from headgate.policy.replicas.full import Full
from headgate.policy.replicas.gradient import limit_to_find
from headgate.policy.replicas.health import Health, Standing
from headgate.policy.replicas.index import Order, RouteIndex
from headgate.policy.replicas.outlier import About
from headgate.policy.replicas.prefix_index import CacheGuess, PrefixIndex
from headgate.policy.replicas.signs import HealthState, Saw
from headgate.policy.replicas.sleepers import Sleepers

IMMATERIAL_S: Final = 0.05
IMMATERIAL_TOKEN_S: Final = 0.01
"""Seconds added to the observed TTFT and TPOT, so that a few milliseconds more are not taken for a queue."""

LEAST_TOKEN_S: Final = 1e-6
"""Least seconds per prompt token by which routing compares replicas: where first tokens took the same time whatever
their prompts, a prompt should still count for something."""


MEMORY_FULL: Final = 0.9
"""Share of an engine's KV memory in use from which on a queue in the engine is one for memory."""


class ReplicaBook:
    def __init__(self, health: Health, prefixes: PrefixIndex, order: Order = "work") -> None:
        self.entries: dict[ReplicaId, ReplicaEntry] = {}
        """In the order in which replicas joined or were described anew."""
        self.index = RouteIndex(self.entries, order)
        self.full = Full(self.index)
        self.sleepers: Final = Sleepers(self.entries, prefixes)
        self.part = (0.0, 1.0)
        """Range of each replica's slots that this gateway may use, 0 to 1: all, unless other gateways share them."""
        self._health = health
        self.prefixes: Final = prefixes
        self._came = 0
        self._usual_token_s: float | None = None
        """Seconds per prompt token of the replicas that are measured, averaged; None: none is yet."""
        self._unmeasured: list[Load] = []
        """Loads whose own seconds per prompt token are not known: they have the usual ones. With a guess instead,
        replicas that are measured would get all requests, or none."""

    # -- which replicas are there -------------------------------------------------------------------------------

    def join(self, replica: Replica, now: float) -> None:
        entry = self.entries.pop(replica.id, None) or new_entry(replica.id)
        self.entries[replica.id] = entry
        known = None if entry.seat is None else entry.seat.load
        if known is not None and known.replica.slots == replica.slots:
            self._describe(entry, known, replica, now)
            return
        self.full.forget(entry)
        if replica.slots is not None:
            entry.found = None
            limit = self._own_part(replica.slots)
        else:
            entry.found = limit_to_find(entry.batch)
            limit = entry.found.limit
        load = Load(replica, limit, usable=0.0 if entry.parked else 1.0, joined_at=now)
        load.prefill_token_s = self._usual_token_s or load.prefill_token_s
        self._unmeasured.append(load)
        self._share_tokens(self.index.add(entry, load))
        entry.unseen, entry.came = True, 0
        self._watch_anew(entry, replica, HealthState.PROBATION, now)

    def _describe(self, entry: ReplicaEntry, load: Load, replica: Replica, now: float) -> None:
        """Updates a replica whose names or kind have changed. Its running requests stay counted."""
        state = HealthState.PROBATION
        if entry.health is not None and entry.health.state in (HealthState.UP, HealthState.RAMPING):
            state = entry.health.state
        load.replica = replica
        self._share_tokens(self.index.add(entry, load))
        self._watch_anew(entry, replica, state, now)

    def _watch_anew(self, entry: ReplicaEntry, replica: Replica, state: HealthState, now: float) -> bool:
        """Begins to judge the replica without what was seen of it. Returns whether its usable share changed."""
        if entry.health is not None:
            self._health.remove(entry.health)
        entry.health = self._health.add(replica, now, state, entry.parked)
        return self._apply(entry, entry.health.usable)

    def park(self, replica_id: ReplicaId, parked: bool, ramp: bool, now: float) -> None:
        """Parks a replica or takes it back. A replica may be parked before it joins. What a replica has cached is not
        forgotten: it is as warm when it comes back, unless it slept."""
        entry = self.entries.get(replica_id)
        if entry is None:
            if parked:
                self.entries[replica_id] = new_entry(replica_id, parked=True)
            return
        entry.parked = parked
        self.sleepers.wakes(entry, now)
        if entry.seat is None or entry.health is None:
            if not parked:
                del self.entries[replica_id]
            return
        load = entry.seat.load
        self._health.park(entry.health, parked)
        share = 0.0
        if not parked:
            if ramp:
                self._health.remove(entry.health)
                entry.health = self._health.add(load.replica, now, HealthState.RAMPING)
            share = self._health.share(entry.health, now)
        if load.usable != share:
            self._use(entry, load, share)

    def leave(self, replica_id: ReplicaId) -> None:
        entry = self.entries.get(replica_id)
        if entry is not None:
            self.sleepers.remove(entry)
            self.full.forget(entry)
            self.prefixes.forget(entry.links)
            if entry.seat is not None:
                self._unmeasured = [load for load in self._unmeasured if load is not entry.seat.load]
            if entry.health is not None:
                self._health.remove(entry.health)
            self.index.remove(entry)
            del self.entries[replica_id]

    def share(self, low: float, high: float) -> None:
        """Sets the range of each replica's slots that this gateway may use. Replicas whose size is found by watching
        them are not divided: what other gateways send there is part of what is watched."""
        if self.part == (low, high):
            return
        self.part = (low, high)
        for entry in self.entries.values():
            if entry.seat is not None:
                slots = entry.seat.load.replica.slots
                if slots is not None:
                    entry.seat.load.limit = self._own_part(slots)
                self._share_tokens(entry.seat)

    def _own_part(self, limit: int) -> float:
        low, high = self.part
        return float(room_of(limit, low, high))

    def _share_tokens(self, seat: IndexEntry) -> None:
        limit = seat.load.replica.token_limit
        if limit is not None:
            seat.token_limit = int(self._own_part(limit))
        self.index.changed(seat.load)

    # -- what they have to do -----------------------------------------------------------------------------------

    def sent(self, load: Load, slots: int, prompt_tokens: int, output_tokens: int, now: float) -> None:
        """Counts a request that takes this many slots at the replica."""
        load.recent_tokens = load.recent(now) + prompt_tokens + output_tokens
        load.recent_at = now
        load.requests += slots
        load.prefill_tokens += prompt_tokens
        load.sent_tokens += prompt_tokens
        self.index.changed(load)

    def released(self, load: Load, slots: int, prefill_tokens: int, decode_tokens: int) -> None:
        """Gives back the slots of a request that is no longer at the replica, and its tokens."""
        load.requests -= slots
        load.prefill_tokens -= prefill_tokens
        load.decode_tokens -= decode_tokens
        self.index.changed(load)

    def decodes(self, load: Load, prompt_tokens: int, output_tokens: int) -> None:
        """Counts a request as past its prompt; with negative numbers, as before it again."""
        load.prefill_tokens -= prompt_tokens
        load.decode_tokens += output_tokens
        self.index.changed(load)

    def first_token(self, load: Load, sent_at: float) -> None:
        """Takes in the first token of a request."""
        if load.ceiling < inf:
            self.took(load, sent_at)
        if load.silent_tokens:
            self.heard_again(load)

    def fell_silent(self, load: Load, prompt_tokens: int) -> None:
        """The replica lost a race to the second one. Its slot is given back, but its prompt stays part of its load
        until it answers another request: it may be stuck."""
        load.prefill_tokens += prompt_tokens
        load.silent_tokens += prompt_tokens
        self.index.changed(load)

    def heard_again(self, load: Load) -> None:
        """The replica was not stuck for good: prompts that it lost in a race no longer count as waiting there."""
        load.prefill_tokens -= load.silent_tokens
        load.silent_tokens = 0
        self.index.changed(load)

    def remember(self, request: Request, replica_id: ReplicaId, uncached_tokens: int) -> int:
        """Notes that the replica is about to see this prompt, and to compute this many tokens of it. Returns its clock,
        for `unremember`."""
        entry = self.entries.get(replica_id)
        if entry is None:
            return 0
        return self.prefixes.remember(request, entry.links, uncached_tokens + request.max_output)

    def unremember(self, request: Request, replica_id: ReplicaId, clock: int) -> None:
        """Takes back what was remembered at this clock: the replica has failed the request, so that the prompt is not
        in its cache, or the next request with the same prompt would fail there too."""
        entry = self.entries.get(replica_id)
        if entry is not None:
            self.prefixes.unremember(request, entry.links, clock)

    def cached_tokens(
        self, prefix: tuple[bytes, ...], link_tokens: float, prompt_tokens: int, model: str, lane: str | None
    ) -> int:
        """Prompt tokens that the usable replica with most of this prompt in its cache is expected to have there, among
        those that a request of this lane goes to. `lane` None: among all. May be called from another thread."""
        most, groups = 0.0, None if lane is None else self.index.groups_now(model, lane)
        for replica_id in self.prefixes.holders(prefix):
            entry = self.entries.get(replica_id)
            seat = None if entry is None else entry.seat
            if entry is None or seat is None or (groups is not None and seat.group not in groups):
                continue
            if seat.load.usable > 0.0:
                most = max(most, self.prefixes.guess(prefix, link_tokens, prompt_tokens, entry.links).tokens)
        return int(most)

    def learn_cached(self, replica_id: ReplicaId, guess: CacheGuess, share: float) -> None:
        """Takes in that the replica had this share, 0 to 1, of what it was remembered to have been sent."""
        entry = self.entries.get(replica_id)
        if entry is not None:
            self.prefixes.learn(guess, share, entry.links)

    def refused(
        self, load: Load, sent_at: float, after_s: float | None, now: float, *, again: bool, unreached: bool
    ) -> None:
        """Closes a replica that refused a request or could not be reached; one that has left is ignored."""
        entry = self.entries.get(load.id)
        seat = None if entry is None else entry.seat
        if entry is not None and seat is not None and seat.load is load:
            self.full.refused(entry, seat, sent_at, after_s, now, again=again, unreached=unreached)

    def took(self, load: Load, sent_at: float) -> None:
        """The replica has accepted a request that was sent at `sent_at`."""
        entry = self.entries.get(load.id)
        if entry is not None:
            self.full.took(entry, sent_at)

    # -- how they are -------------------------------------------------------------------------------------------

    def probed(self, replica_id: ReplicaId, ok: bool, deep: bool, now: float) -> bool:
        """Takes in a probe's result. Returns whether anything changed. A replica that answers for the first time is in
        use at once: it may have been running for weeks, and only the gateway is new."""
        entry = self.entries.get(replica_id)
        if ok and entry is not None and entry.seat is not None:
            load = entry.seat.load
            if deep or load.replica.kind == "headgate":
                load.cold = False  # Headgate's own engine says that it is ready only after its warm-up
            if entry.unseen:
                entry.unseen = False
                return self._watch_anew(entry, load.replica, HealthState.UP, now)
        saw = (Saw.DEEP_OK if ok else Saw.DEEP_FAILED) if deep else Saw.PROBE_OK if ok else Saw.PROBE_FAILED
        opened = ok and entry is not None and self.full.answered(entry)
        return self.saw(replica_id, saw, now) or opened

    def reported(self, event: Reported) -> bool:
        """Takes in what an engine says of itself. Returns whether the replica may have got room."""
        entry = self.entries.get(event.replica_id)
        if entry is None or entry.seat is None:
            return False
        load = entry.seat.load
        before = (load.limit, load.memory_full)
        if event.batch is not None and event.batch != entry.batch:
            entry.batch = event.batch
            if entry.found is not None:  # another batch is another process: what was found of the last one is over
                entry.found = limit_to_find(entry.batch)
                load.limit = entry.found.limit
        # Both, since engines differ in whether memory that only caches prefixes is in use.
        load.memory_full = (event.kv_ratio or 0.0) >= MEMORY_FULL and (event.waiting or 0.0) >= 1.0
        if before == (load.limit, load.memory_full):
            return False
        self.index.changed(load)
        return True

    def saw(self, replica_id: ReplicaId, what: Saw, now: float) -> bool:
        """Takes in one thing seen of a replica. Returns whether its usable share changed."""
        entry = self.entries.get(replica_id)
        if entry is None or entry.health is None:
            return False
        return self._apply(entry, self._health.on(entry.health, what, now).usable)

    def errs(self, replica_id: ReplicaId, about: About, now: float) -> bool:
        """Takes in an error answer to this prompt. Returns whether the replica is blamed: not if only this prompt
        failed there."""
        entry = self.entries.get(replica_id)
        if entry is None or entry.health is None or not entry.health.record.another(about):
            return False
        self.saw(replica_id, Saw.FAILURE, now)
        return True

    def succeeded(
        self,
        load: Load,
        prompt_tokens: int,
        ttft_s: float | None,
        tpot_s: float | None,
        now: float,
        token_s: float | None = None,
    ) -> None:
        """Takes in what a good answer says of its replica: its health, its pace, and how much it can take at once.
        `ttft_s` None: the time of its first token is unknown, and `token_s` is the seconds per token, if the answer had
        enough tokens."""
        load.cold = False
        entry = self.entries.get(load.id)
        if entry is not None and entry.health is not None:
            watch = entry.health
            verdict = self._health.success(watch, ttft_s, prompt_tokens, tpot_s, now, token_s, load.requests)
            if verdict is not None:
                self._apply(entry, verdict.usable)
        if ttft_s is not None:
            self._measured(load)
        pace_s = tpot_s if tpot_s is not None else token_s
        if pace_s is not None:
            load.tpot_s += 0.1 * (pace_s - load.tpot_s)
        found = None if entry is None else entry.found
        if found is not None:
            ttft_s = None if ttft_s is None else ttft_s + IMMATERIAL_S
            tpot_s = None if tpot_s is None else tpot_s + IMMATERIAL_TOKEN_S
            token_s = None if token_s is None else token_s + IMMATERIAL_TOKEN_S
            found.observe(ttft_s, prompt_tokens, tpot_s, load.requests, now, token_s)
            if load.limit != found.limit:
                load.limit = found.limit
                self.index.changed(load)

    def _measured(self, load: Load) -> None:
        """Takes over the replica's own seconds per prompt token, once they are known, and what is usual from all."""
        each_s = load.pace.token_s
        if each_s is None:
            return
        load.prefill_token_s = each_s = max(LEAST_TOKEN_S, each_s)
        usual_s = self._usual_token_s
        self._usual_token_s = usual_s = each_s if usual_s is None else usual_s + 0.1 * (each_s - usual_s)
        if self._unmeasured:
            self._unmeasured = [other for other in self._unmeasured if other is not load]
            for other in self._unmeasured:
                other.prefill_token_s = usual_s

    def answered(self, load: Load, took_s: float, output_tokens: int) -> None:
        """Takes in how long an unstreamed answer took, for `answer_token_s`."""
        each_s, known = took_s / output_tokens, load.answer_token_s
        load.answer_token_s = each_s if known is None else known + 0.1 * (each_s - known)

    def tick(self, now: float) -> None:
        for verdict in self._health.tick(now):
            self._apply(self.entries[verdict.replica_id], verdict.usable)

    def standing(self, replica_id: ReplicaId) -> Standing | None:
        """The replica's standing. None: it is not in the fleet."""
        entry = self.entries.get(replica_id)
        watch = None if entry is None else entry.health
        return None if watch is None else Standing(watch.state, watch.since, watch.why)

    def usable_share(self, replica_id: ReplicaId, now: float) -> float:
        """Share of the replica's slots that its health allows. 0: none, or it is not in the fleet."""
        entry = self.entries.get(replica_id)
        return 0.0 if entry is None or entry.health is None else self._health.share(entry.health, now)

    def _apply(self, entry: ReplicaEntry, usable: float) -> bool:
        """Applies a verdict on the replica's health. Returns whether its usable share changed."""
        if entry.seat is None or usable == entry.seat.load.usable or entry.parked:
            return False
        load = entry.seat.load
        if usable == 0.0:
            self.prefixes.forget(entry.links)  # when the replica is back its cache is empty
            load.cold = True
            self.full.forget(entry)
        self._use(entry, load, usable)
        return True

    def _use(self, entry: ReplicaEntry, load: Load, share: float) -> None:
        if load.usable == 0.0:
            self._came += 1
            entry.came = self._came
            self._catch_up(load)
        load.usable = share
        self.index.changed(load)

    def _catch_up(self, load: Load) -> None:
        """Counts a replica that comes into use as given as much of late as any other: one that was out, perhaps because
        it fails, would otherwise get every prompt that is cached nowhere."""
        loads = [entry.seat.load for entry in self.entries.values() if entry.seat is not None]
        latest = max(each.recent_at for each in loads)
        load.recent_tokens, load.recent_at = max(each.recent(latest) for each in loads), latest
