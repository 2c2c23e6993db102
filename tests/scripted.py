"""A runner that really keeps tokens in slots, and whose model is arithmetic.

Every move is carried out on token lists, and every row must find in its slot exactly the tokens that precede it:
so whatever drives it proves that the ledger's bookkeeping is the physical truth.
"""

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from headgate.config.engine import BatchConfig
from headgate.model.sampling import Sampled
from headgate.model.sequence import Sequence
from headgate.model.step import Copy, Drop, Move, Restore, Save, Step, Trim
from headgate.policy.batching.batch import Batcher
from headgate.policy.batching.blocks import Ledger
from headgate.policy.batching.estimate import StepTime
from headgate.policy.batching.paged import PagedLedger

VOCABULARY = 50


def next_token(tokens: Items[int]) -> int:
    """Depends on everything before it, and loops now and then so that prompt lookup has something to find."""
    if len(tokens) % 40 > 20:
        return tokens[-5 if len(tokens) >= 5 else -1]
    return (sum(tokens[-8:]) * 31 + len(tokens) * 7) % VOCABULARY


def reply(prompt: Items[int], length: int) -> list[int]:
    """What the model says when it is asked alone."""
    tokens = list(prompt)
    for _ in range(length):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


@dataclass
class ScriptedRunner:
    slots: int = 4
    slot_tokens: int = 256
    bytes_per_token: int = 1
    held: dict[int, list[int]] = field(default_factory=dict)
    blobs: dict[int, list[int]] = field(default_factory=dict)
    open_ids: set[int] = field(default_factory=set)

    def open(self, sequence: Sequence) -> None:
        self.open_ids.add(sequence.id)

    def attend(self, sequence_id: int) -> None:
        assert sequence_id in self.open_ids

    def close(self, sequence_id: int) -> None:
        self.open_ids.remove(sequence_id)

    def shutdown(self) -> None:
        pass

    def move(self, move: Move) -> None:
        match move:
            case Trim(slot, length):
                assert len(self.held.get(slot, [])) >= length
                self.held[slot] = self.held.get(slot, [])[:length]
            case Copy(source, slot, length):
                assert len(self.held[source]) >= length
                self.held[slot] = self.held[source][:length]
            case Save(slot, blob, length):
                assert blob not in self.blobs
                assert len(self.held[slot]) >= length
                self.blobs[blob] = self.held[slot][:length]
            case Restore(blob, slot, length):
                assert len(self.blobs[blob]) >= length
                self.held[slot] = self.blobs[blob][:length]
            case Drop(blob):
                del self.blobs[blob]

    def run(self, step: Step) -> list[Sampled]:
        for move in step.moves:
            self.move(move)
        assert [row.slot for row in step.rows] == sorted({row.slot for row in step.rows})
        return [
            sampled
            for row in step.rows
            for sampled in self._row(row.sequence, row.slot, row.start, row.count, row.samples, row.draft)
        ]

    def _row(
        self, sequence: Sequence, slot: int, start: int, count: int, samples: bool, draft: tuple[int, ...]
    ) -> Iterable[Sampled]:
        held = self.held.setdefault(slot, [])
        assert held == sequence.tokens[:start], f"slot {slot} does not hold the tokens before position {start}"
        held.extend(sequence.tokens[start : start + count])
        assert len(held) <= self.slot_tokens
        if not samples:
            assert start + count < len(sequence.tokens)
            return
        drawn = [next_token(held)]
        for guess in draft:
            if drawn[-1] != guess:
                break
            drawn.append(next_token([*held, *drawn]))
        held.extend(draft)
        yield Sampled(sequence.id, tuple(drawn))


def sequence(
    number: int,
    prompt: Items[int],
    *,
    max_output: int = 8,
    arrived: float = 0.0,
    lane: str = "fast",
    priority: int = 0,
    ttft_s: float = 0.5,
    gap_s: float = 0.2,
    longest_neighbour: int | None = None,
) -> Sequence:
    return Sequence(
        id=number,
        tokens=list(prompt),
        prompt_len=len(prompt),
        max_output=max_output,
        arrived=arrived,
        lane=lane,
        priority=priority,
        first_token_by=arrived + ttft_s,
        gap_target_s=gap_s,
        longest_neighbour=longest_neighbour,
    )


def batcher(
    config: BatchConfig | None = None,
    *,
    slots: int = 4,
    slot_tokens: int = 256,
    blocks: int | None = None,
    host_blocks: int = 64,
    block_tokens: int = 8,
) -> Batcher:
    ledger = Ledger(
        slots=slots,
        slot_tokens=slot_tokens,
        blocks=slots * slot_tokens // block_tokens if blocks is None else blocks,
        host_blocks=host_blocks,
        block_tokens=block_tokens,
    )
    return Batcher(config or BatchConfig(), ledger, StepTime())


def step_seconds(step: Step) -> float:
    """How long the scripted machine takes: about what a small CPU does."""
    return 0.004 + 0.007 * step.tokens


def run_step(
    batch: Batcher, runner: ScriptedRunner, now: float, stop_at: frozenset[int] = frozenset()
) -> tuple[float, list[Sequence]] | None:
    """One plan, run and done; None when there is nothing to do. Gives the time after it and who ended.
    Tokens in `stop_at` end a sequence."""
    step = batch.plan(now)
    if step is None:
        return None
    sampled = [cut(one, stop_at) for one in runner.run(step)]
    stopped = frozenset(one.sequence_id for one in sampled if one.tokens[-1] in stop_at)
    took = step_seconds(step)
    return now + took, batch.done(step, sampled, stopped, now + took, took)


def cut(one: Sampled, stop_at: frozenset[int]) -> Sampled:
    for index, token in enumerate(one.tokens):
        if token in stop_at:
            return Sampled(one.sequence_id, one.tokens[: index + 1])
    return one


def drain(
    batch: Batcher, runner: ScriptedRunner, now: float = 0.0, most_steps: int = 100_000
) -> tuple[float, list[Sequence]]:
    ended: list[Sequence] = []
    for _ in range(most_steps):
        result = run_step(batch, runner, now)
        if result is None:
            return now, ended
        now, more = result
        ended += more
    raise AssertionError("it never ends")


def check_pages(ledger: PagedLedger, slots: list[int]) -> None:
    tables = ledger._tables
    assert sorted(tables) == slots
    assert ledger.free_slots == ledger.slots - len(tables)
    users = Counter(digest for table in tables.values() for digest in table.chain)
    assert users == ledger._users
    alone = sum(table.blocks - len(table.chain) for table in tables.values())
    assert ledger.owned_blocks == len(users) + alone
    assert ledger.cached_blocks == len(ledger._idle)
    assert not users.keys() & ledger._idle.keys()
    assert ledger.owned_blocks + ledger.cached_blocks <= ledger.blocks
    swapped = sum(blob.blocks for blob in ledger._blobs.values())
    assert ledger.host_used == swapped + len(ledger._copies) + len(ledger._pinned) <= ledger.host_blocks
    assert all(table.length <= table.blocks * ledger.block_tokens for table in tables.values())


def check_balance(batch: Batcher) -> None:
    """The ledger's sums are the sums of its parts, and within budget."""
    ledger = batch.ledger
    assert all(s.finish is None for s in [*batch.running.values(), *batch.waiting.values()])
    if isinstance(ledger, PagedLedger):
        check_pages(ledger, sorted(s.slot for s in batch.running.values() if s.slot is not None))
        return
    assert isinstance(ledger, Ledger)
    slots, blobs = ledger._slots, ledger._blobs
    owned = [place for place in slots if place.owner is not None]
    cached = [place for place in slots if place.owner is None]
    assert ledger.owned_blocks == sum(place.blocks for place in owned)
    assert ledger.cached_blocks == sum(place.blocks for place in cached)
    assert ledger.owned_blocks + ledger.cached_blocks <= ledger.blocks
    assert ledger.host_used == sum(blob.blocks for blob in blobs.values()) <= ledger.host_blocks
    assert all(place.length <= place.blocks * ledger.block_tokens for place in slots)
    owners = [place.owner for place in owned]
    assert sorted(o for o in owners if o is not None) == sorted(batch.running)
    holders: dict[bytes, set[int]] = {}
    for name, place in [*enumerate(slots), *blobs.items()]:
        for digest in place.chain:
            holders.setdefault(digest, set()).add(name)
    assert len(ledger._holders) == len(holders)
    for digest, places in holders.items():
        assert set(ledger._holders.of(digest)) == places
        assert ledger._holders.only_one(digest) == (len(places) == 1)
    loose = {name: blob for name, blob in blobs.items() if blob.owner is None and not blob.pinned}
    assert ledger._loose_blocks == sum(blob.blocks for blob in loose.values())
    assert {(blob.used_at, name) for name, blob in loose.items()} <= set(ledger._loose)
