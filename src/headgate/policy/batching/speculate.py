"""Drafts the tokens that probably come next, where checking them pays.

Prompt lookup: where the last few tokens occurred before, the tokens that followed then are a guess for those that
follow now. Guesses are verified in the same pass, so they change the speed and never the text.
"""

from collections.abc import Callable

from headgate.model.sequence import Sequence

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


def learn(sequence: Sequence, drafted: int, accepted: int) -> None:
    """Smooths the share of right guesses. A wrong guess ends the check, so it counts as one trial."""
    for right in [1.0] * accepted + [0.0] * (accepted < drafted):
        sequence.acceptance += 0.15 * (right - sequence.acceptance)
