"""Lists the fields of a body that need a rule, by engine, read from the same sources as the dialects.

Most fields that OpenAI does not know are harmless, and pass through. These are not: they steer the engine itself, cost
more than they seem to, or repeat under an engine's own name what the gateway bounds under OpenAI's.
"""

from typing import Final

from headgate.model.dialect import DIALECTS, PLAIN

DROPPED: Final = 1
"""The gateway sets the field itself; the value of an untrusted client is dropped."""
GUARDED: Final = 2
"""Only for trusted keys; refused from other clients."""
LENGTH: Final = 3
"""Another name for max_tokens."""
LEAST: Final = 4
"""The minimum tokens of an answer: not above its cap."""
CHOICES: Final = 5
"""Another name for n, or the number of candidates from which n are chosen."""
LOGPROBS: Final = 6
"""Another name for top_logprobs."""
ENTRIES: Final = 7
"""A list or an object with an entry for each of many tokens or words."""

BOUNDED: Final = 8
"""A field of OpenAI's own, which the lane bounds."""

OWN: Final = ("lane", "priority", "ttft_target_ms", "tpot_target_ms", "longest_neighbour", "uncached_tokens")
"""Fields that trusted clients may send and Headgate's engine understands."""
LENGTHS: Final = ("n_predict", "max_new_tokens", "num_predict", "max_length", "max_gen_len", "max_tokens_to_sample")
LEASTS: Final = ("min_tokens", "min_new_tokens", "min_length")
COUNTS: Final = ("best_of", "n_cmpl", "num_return_sequences", "beam_width", "num_beams")
PROBABILITIES: Final = ("prompt_logprobs", "n_probs", "top_n_tokens", "top_logprobs_num", "num_logprobs")
LISTS: Final = (
    "stop_token_ids", "bad_words", "bad_words_ids", "allowed_token_ids", "banned_tokens", "stop_words", "stop_regex",
    "guided_choice", "ignore_tokens", "force_words", "dry_sequence_breakers", "logprob_token_ids", "token_ids_logprob",
)  # fmt: skip
BOUNDS: Final = ("stop", "logit_bias", "top_logprobs", "logprobs")

GUARDS: Final[dict[str, str]] = {
    name: "any server" if dialect is PLAIN else dialect.name
    for dialect in DIALECTS.values()
    for name in dialect.guarded
}
"""Fields that only trusted keys may send → the engine that knows them."""
SPECIAL: Final[dict[str, int]] = {
    name: kind
    for kind, names in (
        (DROPPED, OWN), (GUARDED, tuple(GUARDS)), (LENGTH, LENGTHS), (LEAST, LEASTS), (CHOICES, COUNTS),
        (LOGPROBS, PROBABILITIES), (ENTRIES, LISTS), (BOUNDED, BOUNDS),
    )
    for name in names
}  # fmt: skip
