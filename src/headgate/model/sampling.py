"""How is the next token drawn?"""

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
    """None: no logprobs at all. 0: of the drawn token only. n: also of the n most likely."""
    ignore_eos: bool = False
    """Go on where the model would end; under a grammar, until that is complete and nothing can follow."""
    min_tokens: int = 0
    """Tokens before which neither an end nor a stop string counts."""
    stop_token_ids: frozenset[int] = frozenset()
    """More tokens that end it; they are not part of the text."""
    confident_end: bool = False
    """End where the model itself is nearly sure that this is the end, whatever is drawn."""
    grammar: str | None = None
    """What the output must follow, as a Lark grammar in llguidance's dialect (engine/grammar/grammar.py makes them)."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The most likely tokens at this position with their logprobs, best first."""


class Sampled:
    """What a step gave one sequence: one token, or several when drafted tokens were accepted. Nobody changes it."""

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
        """One for each token where the sequence asked for logprobs, else empty."""
        self.chances = chances
        """How likely each token was, while the engine wants to know, else empty."""
        self.stuck = stuck
        """Its grammar can't be followed any further, or costs too much to: the answer ends here, unfinished."""
        self.error = error
        """Why the sequence ends here without an answer. Its last token means nothing then."""
