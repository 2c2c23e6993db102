"""Predicts the seconds per token that KV moves add to a step, learned from steps that have moves.

In a step with moves, they took at least the time beyond the prediction, and at most the whole step. The estimate is
kept between the two, and drifts back to its prior: one step delayed by something else must not keep prefixes from being
saved for good.
"""

from typing import Final

from headgate.model.step import Copy, Move, Restore, Save, moved_tokens

TELLING: Final = 256
"""Minimum tokens moved in a step from which to learn: the step's own time varies more than fewer tokens add."""
DRIFT: Final = 0.02


class MovePace:
    """Seconds per token of one kind of move."""

    def __init__(self, prior_s: float) -> None:
        self._prior_s = prior_s
        self.token_s = prior_s

    def learn(self, least_s: float, most_s: float) -> None:
        self.token_s = min(most_s, max(least_s, self.token_s + DRIFT * (self._prior_s - self.token_s)))


class MoveTime:
    def __init__(self, save_s: float = 0.0, load_s: float = 0.0, copy_s: float = 0.0) -> None:
        """Seconds per token before anything is learned."""
        self.save = MovePace(save_s)
        self.load = MovePace(load_s)
        self.copy = MovePace(copy_s)

    def seconds(self, moves: list[Move]) -> float:
        seconds = 0.0
        for move in moves:
            if isinstance(move, Save):
                seconds += self.save.token_s * move.length
            elif isinstance(move, Restore):
                seconds += self.load.token_s * move.length
            elif isinstance(move, Copy):
                seconds += self.copy.token_s * move.length
        return seconds

    def learn(self, moves: tuple[Move, ...], took_s: float, without_s: float) -> None:
        """Learns from a step with these moves that took `took_s`, and was predicted to take `without_s` without
        them."""
        saved, loaded, copied = moved_tokens(moves)
        tokens = saved + loaded + copied
        if tokens < TELLING:
            return
        least_s, most_s = max(0.0, took_s - without_s) / tokens, took_s / tokens
        if 2 * saved > tokens:  # the step tells of the kind that most moves were
            self.save.learn(least_s, most_s)
        elif 2 * loaded > tokens:
            self.load.learn(least_s, most_s)
        elif 2 * copied > tokens:
            self.copy.learn(least_s, most_s)
