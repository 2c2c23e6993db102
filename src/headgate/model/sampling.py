"""Defines how an engine draws a sequence's next token, and what one step drew."""

from dataclasses import dataclass, field

from headgate.model.errors import ServeError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """One sequence's sampling settings. The defaults are OpenAI's, except that `seed` is always set:
    draws are keyed on (seed, position), so that a continuation draws what the original would have."""

    temperature: float = 1.0
    """0 is greedy: the most likely token, ties to the lowest id."""
    top_p: float = 1.0
    top_k: int = 0
    """0 is off."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    logit_bias: dict[int, float] = field(default_factory=dict)
    top_logprobs: int | None = None
    """Logprobs to report. None: none at all. 0: the drawn token's only. n: also those of the n most likely tokens."""
    ignore_eos: bool = False
    """Continue where the model would end; under a grammar, until the grammar is complete and nothing can follow."""
    min_tokens: int = 0
    """Output tokens before which neither an end token nor a stop string ends the sequence."""
    stop_token_ids: frozenset[int] = frozenset()
    """Further tokens that end the sequence. The text does not include them."""
    confident_end: bool = False
    """End the sequence where the model is nearly sure that the text ends, whichever token is drawn."""
    grammar: str | None = None
    """Grammar that the output must follow, in llguidance's Lark dialect (engine/grammar/grammar.py writes it). None: no
    constraint."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The most likely tokens at this position with their logprobs, best first."""


class Sampled:
    """What a step gave one sequence: one token, or several where drafted tokens were accepted. Never changed once
    made."""

    # No dataclass, for the same reason as step.Row.
    __slots__ = ("chances", "error", "logprobs", "sequence_id", "stuck", "tokens")

    def __init__(
        self,
        sequence_id: int,
        tokens: tuple[int, ...],
        logprobs: tuple[TokenLogprob, ...] = (),
        chances: tuple[float, ...] = (),
        stuck: bool = False,
        error: ServeError | None = None,
    ) -> None:
        self.sequence_id = sequence_id
        self.tokens = tokens
        self.logprobs = logprobs
        """One entry per token where the sequence asked for logprobs, else empty."""
        self.chances = chances
        """Probability of each token while the engine asks for it, else empty."""
        self.stuck = stuck
        """The sequence's grammar cannot be followed any further, or costs too much to follow: the answer ends here,
        unfinished."""
        self.error = error
        """Why the sequence ends here without an answer; its last token is then meaningless. None: no error."""
