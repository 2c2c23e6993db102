"""Orders an engine's sequences by urgency."""

from headgate.config.engine import BatchConfig
from headgate.model.lane import LANES, Lane
from headgate.model.sequence import Sequence
from headgate.policy.dispatch.intake import classify

SLIGHT_TOKENS = 256
"""Prompt tokens more than expected that change nothing: a few blocks may always be missing."""


def ageing_bound_s(sequence: Sequence, config: BatchConfig) -> float:
    """Returns the seconds that a sequence may wait before it goes first."""
    return max(config.starve_after_s, sequence.first_token_by - sequence.arrived)


def aged(sequence: Sequence, now: float, config: BatchConfig) -> bool:
    """True if the sequence has waited past its bound."""
    return now - sequence.arrived >= ageing_bound_s(sequence, config)


def urgency(sequence: Sequence, now: float, config: BatchConfig) -> tuple[float, bool, float, int]:
    """Returns a key; smaller goes first. Priority decides, lifted by age; then sequences that can still keep their
    deadline go before those that are late anyway, so that one miss does not become two; then the earliest deadline.

    Age counts in proportion to the TTFT target. If a batch request grew old as quickly as a chat, a busy hour would
    make one queue of all lanes (tests/policy/test_three_hours.py: p99 TTFT of the fast lane 72 s, not 13 s).
    """
    if aged(sequence, now, config):
        return (float("-inf"), False, sequence.arrived, sequence.id)
    waited = now - sequence.arrived
    promised = sequence.first_token_by - sequence.arrived
    level = sequence.priority - waited // max(config.ageing_s, 4.0 * promised)
    return (level, _late(sequence, now), sequence.first_token_by, sequence.id)


def turn(sequence: Sequence, now: float) -> tuple[int, bool, float, int]:
    """Returns a key; smaller is prefilled first. It is `urgency` without the effect of age: an aged prompt has a share
    of each step (`BatchConfig.aged_share`). When it had the whole step, one prompt of 100 000 tokens kept chats waiting
    for 8 s."""
    return (sequence.priority, _late(sequence, now), sequence.first_token_by, sequence.id)


def treat_as_computed(sequence: Sequence) -> None:
    """Gives a sequence whose expected prefix is not in the cache the priority and the deadline of a prompt as long as
    what it really computes: it was let ahead of others because it seemed short."""
    lane = lane_as_computed(sequence.prompt_len - sequence.cached, sequence.expected)
    if lane is not None and lane.priority > sequence.priority:
        sequence.priority = lane.priority
        sequence.first_token_by = max(sequence.first_token_by, sequence.arrived + lane.ttft_target_s)


def lane_as_computed(computes: int, expected: int) -> Lane | None:
    """Returns the lane of a prompt that computes this many tokens, instead of those expected; None: that is no
    matter."""
    if computes <= 2 * expected + SLIGHT_TOKENS:
        return None
    return LANES[classify(uncached_tokens=computes, streaming=True, says_batch=False)]


def _late(sequence: Sequence, now: float) -> bool:
    return sequence.first_token_at is None and now > sequence.first_token_by


def least_urgent(sequence: Sequence) -> tuple[int, float, int, int]:
    """Returns a key; the largest is preempted first: the lowest lane, the latest deadline (to the second), and of those
    the sequence with the least KV to lose."""
    return (sequence.priority, sequence.first_token_by // 1.0, -sequence.computed, sequence.id)
