"""Chooses the sequences of the next step, and their tokens.

Every step decodes all running streams first; `chunks` adds a part of each prompt. Waiting sequences are ordered by
`urgency`. Nothing here knows what runs a step; drivers call `plan`, carry it out, and report `done`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from headgate.config.engine import BatchConfig
from headgate.model.sampling import Sampled
from headgate.model.sequence import Finish, Sequence
from headgate.model.step import Copy, Move, Restore, Row, Save, Step, Trim
from headgate.policy.batching.admission import Admission, Wait
from headgate.policy.batching.chunks import Chunks, streams_of
from headgate.policy.batching.commitment import Commitment
from headgate.policy.batching.estimate import StepTime, shape_of
from headgate.policy.batching.ledger import KvLedger, Short, extend_chain
from headgate.policy.batching.output_length import OutputLength
from headgate.policy.batching.speculate import decode_row, drafted_rows, learn_acceptance
from headgate.policy.batching.urgency import aged, least_urgent, treat_as_computed, turn, urgency

_slot = attrgetter("slot")

OVERTAKERS = 16
"""Sequences of one lane passed over in search of one that fits, when the first does not."""


@dataclass(frozen=True, slots=True)
class BatchRefusal:
    """A sequence that the batcher does not accept, and why."""

    reason: str


@dataclass(slots=True)
class BatchCounts:
    """Totals since the start, which only grow."""

    steps: int = 0
    prefilled: int = 0
    cached: int = 0
    generated: int = 0
    swaps: int = 0
    recomputes: int = 0
    yields: int = 0
    """Preemptions that made way for a higher lane, not for lack of memory."""
    drafted: int = 0
    accepted: int = 0
    ended: int = 0


class Batcher:
    def __init__(self, config: BatchConfig, ledger: KvLedger, step_time: StepTime) -> None:
        self.config = config
        self.ledger = ledger
        self.step_time = step_time
        self.counts = BatchCounts()
        self.waiting: dict[int, Sequence] = {}
        self.running: dict[int, Sequence] = {}
        self._moves: list[Move] = []
        self._last_victim: int | None = None
        self._output = OutputLength(config.first_output_guess, ledger.slots)
        self._admission = Admission(config, ledger, self.running, self._output)
        self._tightest_s = float("inf")
        """The shortest gap target of the running streams, in seconds, as of the latest step."""

    # -- sequences come and go ------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> BatchRefusal | None:
        if len(self.waiting) >= self.config.queue_limit:
            return BatchRefusal(f"{len(self.waiting)} sequences are waiting already")
        if len(sequence.tokens) >= self.ledger.longest:
            return BatchRefusal(f"{len(sequence.tokens)} tokens do not fit the context of {self.ledger.longest}")
        if self.config.gap_target_s is not None and self.config.gap_target_s < sequence.gap_target_s:
            sequence.gap_target_s = self.config.gap_target_s
        extend_chain(sequence.chain, sequence.tokens, self.ledger.block_tokens, sequence.cache_salt)
        self.waiting[sequence.id] = sequence
        return None

    def cancel(self, sequence_id: int, now: float) -> Sequence | None:
        """Ends a sequence and frees all its memory now. None: the sequence has ended already."""
        sequence = self.running.get(sequence_id) or self.waiting.get(sequence_id)
        if sequence is not None:
            self._end(sequence, Finish.CANCELLED, now)
        return sequence

    def pin(self, slot: int, now: float) -> Short | None:
        """Keeps the KV of this slot as a prefix for good. Short: host memory has no room for it."""
        moves = self.ledger.pin(slot, now)
        if isinstance(moves, Short):
            return moves
        self._moves += moves
        return None

    def forget_cached(self) -> None:
        """Forgets all prefixes: the memory that held them was given back. Only while there is no sequence."""
        self._moves.clear()
        self.ledger.clear()

    @property
    def has_work(self) -> bool:
        """True if there are sequences or moves to handle. `plan` may still return None while all sequences wait."""
        return bool(self.running or self.waiting or self._moves)

    # -- one step ---------------------------------------------------------------------------------------

    def plan(self, now: float) -> Step | None:
        """Returns the next step; None: there is nothing to do."""
        # A prefix is not kept if its copy to host memory would delay a running stream beyond its gap target.
        each_s = self.step_time.moves.save.token_s
        self.ledger.save_up_to = int(min(self._tightest_s, self.config.save_limit_s) / each_s) if each_s else None
        self._make_room_to_decode(now)
        self._make_way(now)
        admitted = self._admit(now)
        decodes: list[Sequence] = []
        prefilling: list[Sequence] = []
        tightest_s = float("inf")
        for sequence in self.running.values():
            if sequence.decoding:
                decodes.append(sequence)
                if sequence.gap_target_s < tightest_s:
                    tightest_s = sequence.gap_target_s
            else:
                prefilling.append(sequence)
        self._tightest_s = tightest_s
        prefills: list[Row] = []
        if prefilling:
            moves_s = self.step_time.moves.seconds(self._moves) if self._moves else 0.0
            streams = streams_of(decodes, now)
            prefills = Chunks(self.config, self.step_time, streams, moves_s, now).rows(prefilling)
        steady = not prefills and not admitted
        if decodes and not prefills and len(decodes) <= self.config.draft_batch:
            rows = drafted_rows(decodes, self.config, self.ledger, self.step_time, self._moves)
            steady = steady and not any(row.draft for row in rows)
        else:
            rows = [decode_row(sequence) for sequence in decodes]
        moves = tuple(self._moves)
        if moves:
            self._moves = []
        rows += prefills
        if not rows and not moves:
            return None
        rows.sort(key=_slot)
        return Step(moves, tuple(rows), self._repeat(rows) if steady and not moves else 1)

    def done(
        self, step: Step, sampled: Iterable[Sampled], stopped: frozenset[int], now: float, took_s: float
    ) -> list[Sequence]:
        """Records a step that took `took_s`, and returns the sequences that ended. `stopped`: sequences ended by their
        output. A simulator that ran a repeated step reports all its tokens at once."""
        drawn: dict[int, tuple[int, ...]] = {}
        times = 1
        for one in sampled:
            drawn[one.sequence_id] = one.tokens
            if len(one.tokens) > times:
                times = len(one.tokens)
        if step.rows:
            shape = shape_of(step)
            if any(isinstance(move, Save | Restore | Copy) for move in step.moves):
                self.step_time.moves.learn(step.moves, took_s, self.step_time.predict(shape))
            else:
                self.step_time.learn(shape, took_s / times if step.repeat > 1 else took_s)
        self.counts.steps += 1
        booked: list[Sequence] = []
        size, generated = self.ledger.block_tokens, 0
        for row in step.rows:
            sequence = row.sequence
            if sequence.finish is not None or sequence.slot != row.slot:
                continue
            tokens = drawn.get(sequence.id)
            if tokens and row.count == 1 and not row.draft and sequence.first_token_at is not None:
                # Nearly always: another token of a running stream. Here and not in `_book`, because it is most of a
                # step's cost.
                count, said = len(tokens), sequence.tokens
                sequence.computed = row.start + count
                if count == 1:
                    said.append(tokens[0])
                else:
                    said.extend(tokens)
                sequence.last_token_at = now
                generated += count
                if len(said) >= (len(sequence.chain) + 1) * size:
                    extend_chain(sequence.chain, said, size, sequence.cache_salt)
            else:
                self._book(row, sequence, tokens or (), now)
            booked.append(sequence)
        self.counts.generated += generated
        if times > 1:
            self._admission.outgrown()
        if step.repeat > 1:
            for sequence in self.ledger.full(booked):  # `_repeat` made sure that there is room
                assert sequence.slot is not None
                self.ledger.grow(sequence.slot, sequence.computed)
        self.ledger.commit(booked)
        return self._end_those_done(booked, stopped, now)

    def _end_those_done(self, booked: list[Sequence], stopped: frozenset[int], now: float) -> list[Sequence]:
        longest, ended = self.ledger.longest, []
        for sequence in booked:
            length = len(sequence.tokens)
            if length >= longest or length - sequence.prompt_len >= sequence.max_output or sequence.id in stopped:
                self._end(sequence, Finish.STOP if sequence.id in stopped else Finish.LENGTH, now)
                ended.append(sequence)
        return ended

    def _book(self, row: Row, sequence: Sequence, tokens: tuple[int, ...], now: float) -> None:
        drawn, ledger = len(tokens), self.ledger
        if not sequence.decoding:
            sequence.chunks += 1
            self.counts.prefilled += row.count
        sequence.computed = row.start + row.count + (drawn - 1 if drawn > 1 else 0)
        if row.draft:
            learn_acceptance(sequence, len(row.draft), len(tokens) - 1)
            self.counts.drafted += len(row.draft)
            self.counts.accepted += len(tokens) - 1
            if len(tokens) == 1 + len(row.draft):
                sequence.drafts_rested = self.config.draft_rest  # it worked: try again at once
            else:
                assert sequence.slot is not None  # the sequence has just run
                self._moves.append(Trim(sequence.slot, sequence.computed))
        if drawn:
            sequence.tokens.extend(tokens)
            self.counts.generated += drawn
            sequence.last_token_at = now
            if sequence.first_token_at is None:
                sequence.first_token_at = now
            if len(sequence.tokens) >= (len(sequence.chain) + 1) * ledger.block_tokens:
                extend_chain(sequence.chain, sequence.tokens, ledger.block_tokens, sequence.cache_salt)

    def _end(self, sequence: Sequence, finish: Finish, now: float) -> None:
        sequence.finish = finish
        self.waiting.pop(sequence.id, None)
        self.running.pop(sequence.id, None)
        self._admission.left()
        if sequence.slot is not None:
            self.ledger.release(sequence.slot, now)
            sequence.slot = None
        if sequence.blob is not None:
            self._moves += self.ledger.drop(sequence.blob)
            sequence.blob = None
        self._output.end(sequence)
        self.counts.ended += 1

    # -- memory -------------------------------------------------------------------------------------------

    def _make_room_to_decode(self, now: float) -> None:
        """Gives every decoding sequence room for its next token; preempts running sequences if need be."""
        for sequence in self.ledger.full(self.running.values()):
            while sequence.decoding and sequence.slot is not None:
                moves = self.ledger.grow(sequence.slot, len(sequence.tokens))
                if not isinstance(moves, Short):
                    self._moves += moves
                    break
                self._preempt(self._victim(), now)

    def _victim(self) -> Sequence:
        """Returns the least urgent running sequence, but not the same one twice in a row."""
        others = [s for s in self.running.values() if s.id != self._last_victim] or list(self.running.values())
        return max(others, key=least_urgent)

    def _preempt(self, victim: Sequence, now: float) -> None:
        assert victim.slot is not None
        swapped = self.ledger.swap_out(victim.slot, now)
        if isinstance(swapped, Short):
            self.ledger.release(victim.slot, now)  # what survives in the cache need not be computed again
            victim.computed = 0
            self.counts.recomputes += 1
        else:
            victim.blob, moves = swapped
            self._moves += moves
            self.counts.swaps += 1
        victim.slot = None
        victim.preemptions += 1
        self._last_victim = victim.id
        del self.running[victim.id]
        self._admission.left()
        self.waiting[victim.id] = victim

    def _make_way(self, now: float) -> None:
        """Frees a slot for the most urgent waiting sequence when every slot is taken: swapping a sequence of a lower
        lane out and in again costs a few decode steps, waiting for its end costs seconds. A sequence that was preempted
        `most_yields` times, or whose age has made it as urgent as the newcomer, stays."""
        if not self.waiting or self.ledger.free_slots:
            return
        first = min(self.waiting.values(), key=lambda s: urgency(s, now, self.config))
        if not self._made_way_for(first, now):
            # An aged sequence that may not preempt any other must not keep a higher lane from doing so.
            highest = min(self.waiting.values(), key=lambda s: turn(s, now))
            if highest.priority < first.priority:
                self._made_way_for(highest, now)

    def _made_way_for(self, first: Sequence, now: float) -> bool:
        level = urgency(first, now, self.config)[0]
        yielding = [
            s
            for s in self.running.values()
            if s.decoding
            and s.priority > first.priority
            and s.preemptions < self.config.most_yields
            and urgency(s, now, self.config)[0] > level
        ]
        if not yielding:
            return False
        victim = max(yielding, key=least_urgent)
        del self.running[victim.id]
        would_fit = self._admission.holds_back(first, self._admission.committed(), now) is None
        self.running[victim.id] = victim
        if would_fit:  # otherwise the victim would go for nothing
            self.counts.yields += 1
            victim.yields += 1
            self._preempt(victim, now)
        return would_fit

    # -- admission ----------------------------------------------------------------------------------------

    def _admit(self, now: float) -> bool:
        """Moves waiting sequences into slots, in order of urgency, as far as slots and memory go. Returns whether any
        was admitted."""
        free = self.ledger.free_slots
        if not free or not self.waiting:
            return False
        queue = sorted(self.waiting.values(), key=lambda s: urgency(s, now, self.config))
        admission, steps = self._admission, self.counts.steps
        committed = admission.commitment(steps)
        before = len(self.running)
        passed_over: dict[int, int] = {}
        short: Sequence | None = None
        """The first aged sequence that waits for memory: memory that is freed is kept for it. None: there is none."""
        passed_it: Commitment | None = None
        """The memory need of that sequence and of those that have passed it."""
        for sequence in queue:
            if not free:
                break
            passed = passed_over.get(sequence.priority, 0)
            if passed > OVERTAKERS:
                continue
            if short is not None and passed_it is not None and not admission.may_pass(sequence, short, passed_it):
                continue
            why = admission.holds_back(sequence, committed, now)
            if why is Wait.MEMORY and admission.freed:
                committed = admission.commit(steps)
                why = admission.holds_back(sequence, committed, now)
            if why is None and not self._enter(sequence, now):
                why = Wait.MEMORY
            if why is None:
                free -= 1
                committed.add(sequence)
                if short is not None and passed_it is not None and sequence.arrived > short.arrived:
                    passed_it.add(sequence)
                continue
            passed_over[sequence.priority] = passed + 1
            if why is Wait.MEMORY and short is None and aged(sequence, now, self.config):
                short = sequence
                passed_it = admission.committed(after=short.arrived)
                passed_it.add(short)
        return len(self.running) > before

    def _enter(self, sequence: Sequence, now: float) -> bool:
        # Room for the whole prompt is taken at once, so that a prefill in progress is never short of memory.
        tokens = len(sequence.tokens)
        if sequence.blob is not None:
            placed = self.ledger.swap_in(sequence.id, sequence.blob, tokens, now)
        else:
            placed = self.ledger.place(sequence.id, sequence.chain, tokens, now)
        if isinstance(placed, Short):
            return False
        self._moves += placed.moves
        sequence.slot, sequence.computed, sequence.blob = placed.slot, placed.length, None
        if sequence.admitted_at is None:
            sequence.admitted_at = now
            self._output.start(sequence)
            sequence.cached = placed.length
            if sequence.expected:
                treat_as_computed(sequence)
            self.counts.cached += placed.length
        self.running[sequence.id] = sequence
        del self.waiting[sequence.id]
        return True

    def _repeat(self, rows: list[Row]) -> int:
        """Returns the number of equal steps until a sequence ends or memory runs short. While sequences wait, every
        step decides anew: as time passes they may become urgent enough to be admitted."""
        if not rows or self.waiting:
            return 1
        longest, steps = self.ledger.longest, self.ledger.longest
        for row in rows:
            sequence = row.sequence
            length = len(sequence.tokens)
            steps = min(steps, sequence.max_output - length + sequence.prompt_len, longest - length)
        spare = self.ledger.blocks - self.ledger.owned_blocks - self.ledger.cached_blocks
        # With `spare` free blocks, this many tokens each are certain not to need an eviction.
        return max(1, min(steps, (spare // len(rows)) * self.ledger.block_tokens))
