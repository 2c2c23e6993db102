"""Lists the fields of a body that need a rule, by engine, read from the same sources as dialects.py.

Most fields that OpenAI does not know are harmless, and pass through. These are not: they steer the engine itself, cost
more than they seem to, or repeat under an engine's own name what the gateway bounds under OpenAI's.
"""

from collections.abc import Mapping
from typing import Final

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

OWN: Final = ("lane", "priority", "ttft_target_ms", "tpot_target_ms", "longest_neighbour")
"""Fields that trusted clients may send and Headgate's engine understands."""
GUARDED_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "Headgate's engine": ("continued", "generation_limit_ms", "runaway"),
    "vLLM": (
        "kv_transfer_params", "ec_transfer_params", "vllm_xargs", "logits_processors", "mm_processor_kwargs",
        "media_io_kwargs", "prompt_embeds", "chat_template", "request_id", "data_parallel_rank",
    ),
    "SGLang": (
        "lora_path", "lora_id", "custom_logit_processor", "custom_params", "bootstrap_host", "bootstrap_port",
        "bootstrap_room", "bootstrap_pair_key", "decode_tp_size", "routed_dp_rank", "disagg_prefill_dp_rank",
        "session_params", "input_embeds", "image_data", "video_data", "audio_data", "rid", "extra_key",
        "return_hidden_states", "return_routed_experts", "custom_labels", "sampling_params",
    ),
    "TGI": ("parameters", "adapter_id"),
    "TensorRT-LLM": (
        "lora_request", "disaggregated_params", "scheduling_params", "prompt_token_ids", "conversation_params",
        "agent_hierarchy", "multi_modal_data", "py_executor_args",
    ),
    "Triton": ("nvext",),
    "llama.cpp's server": ("id_slot", "slot_id", "lora", "n_keep", "n_discard", "response_fields"),
    "any server": ("options", "generation_config", "generation_kwargs", "extra_args", "engine_params"),
}  # fmt: skip
"""Fields by engine that only trusted keys may send: where its KV goes to and comes from, which files and code it loads,
which of its slots is used, and objects in which the engine would again find values that the gateway bounds."""
LENGTHS: Final = ("n_predict", "max_new_tokens", "num_predict", "max_length", "max_gen_len", "max_tokens_to_sample")
LEASTS: Final = ("min_tokens", "min_new_tokens", "min_length")
COUNTS: Final = ("best_of", "n_cmpl", "num_return_sequences", "beam_width", "num_beams")
PROBABILITIES: Final = ("prompt_logprobs", "n_probs", "top_n_tokens", "top_logprobs_num", "num_logprobs")
LISTS: Final = (
    "stop_token_ids", "bad_words", "bad_words_ids", "allowed_token_ids", "banned_tokens", "stop_words", "stop_regex",
    "guided_choice", "ignore_tokens", "force_words", "dry_sequence_breakers", "logprob_token_ids", "token_ids_logprob",
)  # fmt: skip
BOUNDS: Final = ("stop", "logit_bias", "top_logprobs", "logprobs")

GUARDS: Final[dict[str, str]] = {name: engine for engine, names in GUARDED_BY.items() for name in names}
"""Fields that only trusted keys may send → the engine that knows them."""
SPECIAL: Final[dict[str, int]] = {
    name: kind
    for kind, names in (
        (DROPPED, OWN), (GUARDED, tuple(GUARDS)), (LENGTH, LENGTHS), (LEAST, LEASTS), (CHOICES, COUNTS),
        (LOGPROBS, PROBABILITIES), (ENTRIES, LISTS), (BOUNDED, BOUNDS),
    )
    for name in names
}  # fmt: skip
