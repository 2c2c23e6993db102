"""Emulates a model: takes the time that a profile gives, and outputs placeholder words. So a GPU's queues and memory
pressure can be tested without the GPU.

The time of a step counts from when the step before was due, not from when this one was handed over. So choosing a step,
delivering its tokens and waking up a little late are part of the modelled time and not on top of it, and errors do not
add up. A machine that can't keep up falls behind; delay that can't be caught up any more is counted.
"""

import random
import threading
from collections.abc import Callable
from collections.abc import Sequence as Items

from headgate.machine.profile import Noise, Profile
from headgate.machine.step_features import shape
from headgate.model.clock import Clock, monotonic
from headgate.model.errors import InvalidRequest
from headgate.model.sampling import Sampled, TokenLogprob
from headgate.model.sequence import Sequence
from headgate.model.step import Row, Step

MOST_BEHIND_S = 0.25
"""Maximum delay, in the profile's seconds, that shorter steps may catch up. More would mean a burst of tokens that no
GPU gives."""
_SPREAD = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1

Wait = Callable[[float], bool]
"""Waits for the given seconds; returns True to stop waiting, now and for good."""


class EmulatedRunner:
    """Implements `engine.Runner`. Used by one thread; only `halt` may be called from another."""

    def __init__(
        self,
        profile: Profile,
        words: Items[int],
        *,
        rng: random.Random,
        dilation: float = 1.0,
        clock: Clock = monotonic,
        wait: Wait | None = None,
    ) -> None:
        """`words`: the tokens to output. `dilation`: real seconds per second of the profile."""
        self.slots = profile.slots
        self.bytes_per_token = profile.bytes_per_token
        self.profile = profile
        self.dilation = dilation
        self.model_s = 0.0
        """Modelled seconds so far, dilated."""
        self.behind_s = 0.0
        """Seconds of delay beyond catching up: this machine was too slow."""
        self._words = words
        self._noise = Noise(rng)
        self._clock = clock
        self._halted = threading.Event()
        self._wait = wait or self._halted.wait
        self._due = clock()
        self._keys: dict[int, int] = {}

    def open(self, sequence: Sequence) -> None:
        sampling = sequence.sampling
        if sampling.grammar is not None:
            raise InvalidRequest("an emulated engine can't follow a response_format", param="response_format")
        if not self._keys:
            self._due = self._clock()  # the engine was idle
        # By seed (or the prompt's beginning) and position, so that a continuation outputs what the original would have.
        self._keys[sequence.id] = sampling.seed if sampling.temperature else sum(sequence.tokens[:16])

    def attend(self, sequence_id: int) -> None:
        """Does nothing: the words have no probabilities."""

    def close(self, sequence_id: int) -> None:
        del self._keys[sequence_id]

    def run(self, step: Step) -> list[Sampled]:
        began = self._clock()
        if not self._keys:
            self._due = began
        elif (behind := began - self._due - MOST_BEHIND_S * self.dilation) > 0:
            self.behind_s += behind
            self._due += behind
        took = self.profile.step_s(shape(step), self._noise) * self.dilation
        self.model_s += took
        self._due += took
        sampled = [self._draw(row) for row in step.rows if row.samples]
        while (left := self._due - self._clock()) > 0:
            if self._wait(left):
                break
        return sampled

    def halt(self) -> None:
        """Ends every wait: the engine is to stop."""
        self._halted.set()

    def shutdown(self) -> None:
        self._keys.clear()

    def _draw(self, row: Row) -> Sampled:
        sequence = row.sequence
        words, key = self._words, self._keys[sequence.id]
        token = words[((key + len(sequence.tokens)) * _SPREAD & _MASK) * len(words) >> 64]
        wanted = sequence.sampling.top_logprobs
        if wanted is None:
            return Sampled(sequence.id, (token,))
        return Sampled(sequence.id, (token,), (TokenLogprob(token, 0.0, ((token, 0.0),) if wanted else ()),))
