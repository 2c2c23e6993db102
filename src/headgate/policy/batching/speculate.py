"""Drafts the tokens that probably come next, where checking them pays.

Prompt lookup: where the last few tokens occurred before, the tokens that followed then are a guess for those that
follow now. Guesses are verified in the same pass, so they change the speed and never the text.
"""

from collections.abc import Callable

from headgate.config.engine import BatchConfig
from headgate.model.sequence import Sequence
from headgate.model.step import Move, Row
from headgate.policy.batching.estimate import StepShape, StepTime
from headgate.policy.batching.ledger import KvLedger, Short

LONGEST_DRAFT = 8
GAIN = 1.1
"""Minimum expected speed-up; below it a draft is not worth the noise in the gaps."""


def look_up(
    tokens: list[int], most: int, *, longest: int = 4, shortest: int = 2, window: int = 1024
) -> tuple[int, ...]:
    """Returns the tokens that followed the latest earlier occurrence of the current ending, at most `most`."""
    recent = tokens[-window:]
    for size in range(longest, shortest - 1, -1):
        if len(recent) <= size:
            continue
        ending = recent[-size:]
        first = ending[0]
        for start in range(len(recent) - size - 1, -1, -1):
            if recent[start] == first and recent[start : start + size] == ending:
                return tuple(recent[start + size : start + size + most])
    return ()


def draft_length(acceptance: float, step_s: Callable[[int], float], allowed: int) -> int:
    """Returns the number of drafted tokens that gives the most tokens per second; 0: drafting does not pay.

    `step_s(k)` predicts the step with k drafted tokens.
    """
    alone = 1.0 / step_s(0)
    best, best_rate, expected = 0, alone * GAIN, 1.0
    for drafted in range(1, allowed + 1):
        expected += acceptance**drafted
        rate = expected / step_s(drafted)
        if rate > best_rate:
            best, best_rate = drafted, rate
    return best


def learn_acceptance(sequence: Sequence, drafted: int, accepted: int) -> None:
    """Smooths the share of right guesses. A wrong guess ends the check, so it counts as one trial."""
    for right in [1.0] * accepted + [0.0] * (accepted < drafted):
        sequence.acceptance += 0.15 * (right - sequence.acceptance)


def decode_row(sequence: Sequence, draft: tuple[int, ...] = ()) -> Row:
    assert sequence.slot is not None
    return Row(sequence, sequence.slot, sequence.computed, 1, True, draft)


def drafted_rows(
    decodes: list[Sequence], config: BatchConfig, ledger: KvLedger, step_time: StepTime, moves: list[Move]
) -> list[Row]:
    """Returns rows with drafts where they are expected to pay, and now and then to find out. Appends to `moves` what
    makes room for the drafts."""
    context = sum(sequence.computed + 1 for sequence in decodes)
    rows = []
    for sequence in decodes:
        allowed = min(LONGEST_DRAFT, sequence.max_output - sequence.output_len - 1)
        allowed = min(allowed, ledger.longest - len(sequence.tokens) - 1)

        def step_s(drafted: int, length: int = sequence.computed) -> float:
            return step_time.predict(StepShape(drafted, len(decodes), context + drafted * length))

        size = draft_length(sequence.acceptance, step_s, allowed)
        if size == 0 and allowed > 0:
            sequence.drafts_rested += 1
            size = min(2, allowed) if sequence.drafts_rested > config.draft_rest else 0
        draft = look_up(sequence.tokens, size) if size else ()
        if draft:
            sequence.drafts_rested = 0
            assert sequence.slot is not None
            room = ledger.grow(sequence.slot, len(sequence.tokens) + len(draft))
            if isinstance(room, Short):
                draft = ()
            else:
                moves += room
        rows.append(decode_row(sequence, draft))
    return rows
