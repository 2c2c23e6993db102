"""Judges whether a waiting sequence may join the batch: by predicted memory, long prompts, neighbours and prefixes."""

from enum import Enum

from headgate.config.engine import BatchConfig
from headgate.model.sequence import Sequence
from headgate.policy.batching.commitment import Commitment
from headgate.policy.batching.ledger import KvLedger
from headgate.policy.batching.output_length import OutputLength
from headgate.policy.batching.urgency import aged, turn

FRESH_STEPS = 8
"""Steps for which the predicted memory need of the running sequences is reused, until memory is short after one has
ended."""
PASSING = 0.25
"""Share of the headroom that a sequence leaves free where less urgent ones hold memory."""


class Wait(Enum):
    """Why a sequence is not admitted yet."""

    MEMORY = "memory"
    TURN = "turn"
    """Other long prompts are being prefilled, or another sequence is computing a prefix that this one needs."""
    NEIGHBOUR = "neighbour"


class Admission:
    """Reads the running sequences, and predicts what memory they will need; changes nothing else."""

    def __init__(
        self, config: BatchConfig, ledger: KvLedger, running: dict[int, Sequence], output: OutputLength
    ) -> None:
        """`running` is the batcher's own, which changes as sequences come and go."""
        self._config = config
        self._ledger = ledger
        self._running = running
        self._output = output
        self._commitment: Commitment | None = None
        """The predicted memory need of the running sequences, and of those that have ended since it was made; None: out
        of date."""
        self._fresh_until = 0
        """The step at which `_commitment` is out of date."""
        self.freed = False
        """Whether a sequence has left since `_commitment` was made, so that making it anew may show more room."""

    def left(self) -> None:
        """A sequence has left the batch."""
        self.freed = True

    def outgrown(self) -> None:
        """The running sequences have grown by more than a token each."""
        self._commitment = None

    def commitment(self, step: int) -> Commitment:
        """Returns the predicted memory need of the running sequences, made at most FRESH_STEPS steps ago."""
        if self._commitment is None or step >= self._fresh_until:
            return self.commit(step)
        return self._commitment

    def commit(self, step: int) -> Commitment:
        """Predicts the memory need of the running sequences anew."""
        made = self._commitment = self.committed()
        self.freed = False
        self._fresh_until = step + FRESH_STEPS
        return made

    def committed(self, after: float = float("-inf")) -> Commitment:
        """Returns the predicted final memory need of the running sequences that arrived after `after`."""
        made = Commitment(self._output, self._ledger.block_tokens, self._ledger.longest)
        for sequence in self._running.values():
            if sequence.arrived > after:
                made.add(sequence)
        return made

    def may_pass(self, sequence: Sequence, short: Sequence, passed_it: Commitment) -> bool:
        """True if a higher lane's sequence may pass an aged one that waits for memory: all that have passed it must
        leave room for it, so that it fits when those before it have ended."""
        if sequence.priority >= short.priority:
            return False
        return not passed_it.exceeds(sequence, (1.0 - self._config.headroom) * self._ledger.blocks)

    def holds_back(self, sequence: Sequence, committed: Commitment, now: float) -> Wait | None:
        """Returns why a sequence may not be admitted; None: it may, if there is a slot."""
        if not self._running:
            return None
        headroom, blocks = self._config.headroom, self._ledger.blocks
        # What is predicted counts shared blocks for each sequence that uses them.
        spared = self._ledger.spared(sequence.chain)
        if committed.exceeds(sequence, (1.0 - headroom) * blocks + spared, sequence.priority):
            return Wait.MEMORY
        # Less urgent sequences may take only a part of the headroom from this one.
        if committed.exceeds(sequence, (1.0 - PASSING * headroom) * blocks + spared):
            return Wait.MEMORY
        old = aged(sequence, now, self._config)
        long = self._to_prefill(sequence) > self._config.long_prompt_tokens
        if long and self._long_before(sequence, old, now) >= self._config.long_prefills:
            return Wait.TURN
        # A sequence that has waited past its bound is admitted whatever neighbours the others accept.
        if not old and not self._neighbourly(sequence):
            return Wait.NEIGHBOUR
        return Wait.TURN if self._prefix_is_coming(sequence, now) else None

    def _long_before(self, sequence: Sequence, old: bool, now: float) -> int:
        """Returns the number of long prompts being prefilled that a sequence has to wait for: those of its own lane and
        of more urgent lanes; an aged sequence waits, of the latter, only for aged ones."""
        long, priority = self._config.long_prompt_tokens, sequence.priority
        return sum(
            1
            for s in self._running.values()
            if s.priority <= priority
            and s.pending > long
            and (s.priority == priority or not old or aged(s, now, self._config))
        )

    def _to_prefill(self, sequence: Sequence) -> int:
        """Returns the tokens of a waiting sequence that would really have to be computed."""
        if sequence.blob is not None or sequence.pending <= self._config.long_prompt_tokens:
            return sequence.pending if sequence.blob is None else 0
        return sequence.pending - self._ledger.match(sequence.chain) * self._ledger.block_tokens

    def _predicted_len(self, sequence: Sequence) -> int:
        return min(self._ledger.longest, sequence.prompt_len + self._output.of(sequence))

    def _neighbourly(self, sequence: Sequence) -> bool:
        """True if every sequence of the batch accepts the others' lengths. A sequence longer than the engine's own cap
        is not protected by it, so long ones may share a batch."""

        return all(self._accepts(sequence, s) and self._accepts(s, sequence) for s in self._running.values())

    def _accepts(self, one: Sequence, other: Sequence) -> bool:
        cap = one.longest_neighbour
        if cap is None:
            cap = self._config.longest_shared
            if cap is None or self._predicted_len(one) > cap:
                return True
        return self._predicted_len(other) <= cap

    def _prefix_is_coming(self, sequence: Sequence, now: float) -> bool:
        """True if a sequence with an earlier turn is computing the very block that this one needs next: waiting shares
        it."""
        known = self._ledger.match(sequence.chain)
        if known >= len(sequence.chain):
            return False
        end = (known + 1) * self._ledger.block_tokens
        return any(
            other.computed < end <= other.prompt_len
            and other.chain[known] == sequence.chain[known]
            and turn(other, now) < turn(sequence, now)
            for other in self._running.values()
        )
