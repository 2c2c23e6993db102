"""Decides which fields of other servers' requests are accepted, and which are refused.

The engine does what a field asks for, or refuses the field by name: an answer that silently ignores half of the request
is worse than a 400. A field with null or its default value asks for nothing. Unknown fields are ignored, as by every
OpenAI server.
"""

from collections.abc import Mapping
from typing import Any, Final

from headgate.model.errors import InvalidRequest

NOTHING: Final[tuple[Any, ...]] = (None, False, 0, "", [], {})
"""Values that ask for nothing, except for fields with another default."""

REFUSED: Final[Mapping[str, tuple[Any, ...]]] = {
    # OpenAI
    "audio": NOTHING,
    "function_call": (*NOTHING, "none", "auto"),
    "functions": NOTHING,
    "modalities": (*NOTHING, ["text"]),
    "moderation": NOTHING,
    "store": NOTHING,
    "verbosity": (*NOTHING, "medium"),
    "web_search_options": (None,),
    # vLLM and SGLang
    "add_generation_prompt": (None, True),
    "add_special_tokens": (None, True),
    "allowed_token_ids": NOTHING,
    "bad_words": NOTHING,
    "bootstrap_host": NOTHING,
    "bootstrap_port": NOTHING,
    "bootstrap_room": (None,),
    "chat_template": NOTHING,
    "custom_logit_processor": NOTHING,
    "custom_params": NOTHING,
    "documents": NOTHING,
    "early_stopping": NOTHING,
    "ebnf": NOTHING,
    "include_reasoning": (None, True, False),
    "include_stop_str_in_output": NOTHING,
    "input_embeds": NOTHING,
    "kv_transfer_params": NOTHING,
    "length_penalty": (None, 1),
    "logits_processors": NOTHING,
    "lora_path": NOTHING,
    "mm_processor_kwargs": NOTHING,
    "no_stop_trim": NOTHING,
    "prompt_embeds": NOTHING,
    "prompt_logprobs": NOTHING,
    "repetition_detection": NOTHING,
    "return_hidden_states": NOTHING,
    "return_tokens_as_token_ids": NOTHING,
    "separate_reasoning": (None, True, False),
    "skip_special_tokens": (None, True),
    "stop_regex": NOTHING,
    "structural_tag": NOTHING,
    "thinking_token_budget": NOTHING,
    "truncate_prompt_tokens": (*NOTHING, -1),
    "use_beam_search": NOTHING,
    "vllm_xargs": NOTHING,
    # llama.cpp
    "adaptive_target": (*NOTHING, -1),
    "cache_prompt": (None, True),
    "dry_multiplier": NOTHING,
    "dynatemp_range": NOTHING,
    "grammar": NOTHING,
    "grammar_lazy": NOTHING,
    "id_slot": (None, -1),
    "image_data": NOTHING,
    "lora": NOTHING,
    "min_keep": NOTHING,
    "mirostat": NOTHING,
    "n_discard": NOTHING,
    "n_indent": NOTHING,
    "n_keep": (*NOTHING, -1),
    "n_predict": (None, -1),
    "n_probs": NOTHING,
    "penalty_prompt": NOTHING,
    "post_sampling_probs": NOTHING,
    "reasoning_format": (*NOTHING, "none", "auto"),
    "repeat_penalty": (None, 1),
    "response_fields": NOTHING,
    "return_progress": NOTHING,
    "return_tokens": NOTHING,
    "samplers": NOTHING,
    "t_max_predict_ms": (*NOTHING, -1),
    "t_max_prompt_ms": (*NOTHING, -1),
    "tfs_z": (None, 1),
    "timings_per_token": NOTHING,
    "top_a": NOTHING,
    "top_n_sigma": (*NOTHING, -1),
    "typical_p": (None, 1),
    "xtc_probability": NOTHING,
}
"""Fields that the embedded engine can't honour, each with the values that ask for nothing."""

ONLY_OF_CHATS: Final[Mapping[str, tuple[Any, ...]]] = {
    "chat_template_kwargs": NOTHING,
    "continue_final_message": NOTHING,
    "max_completion_tokens": (None,),
    "messages": NOTHING,
    "parallel_tool_calls": (None, True, False),
    "reasoning_effort": (*NOTHING, "none", "medium"),
    "tool_choice": (*NOTHING, "none", "auto"),
    "tools": NOTHING,
    "top_logprobs": NOTHING,
}
"""Chat fields, refused on /v1/completions, where they would have no effect."""
ONLY_OF_TEXT: Final[Mapping[str, tuple[Any, ...]]] = {
    "best_of": (*NOTHING, 1),
    "echo": NOTHING,
    "prompt": NOTHING,
    "suffix": NOTHING,
}
"""Text fields, refused on /v1/chat/completions."""

HINTS: Final = frozenset(
    {
        *("metadata", "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
        *("request_id", "rid"),
        *("return_details", "safety_identifier", "spaces_between_special_tokens", "user"),
        # These only have a meaning beside a field above, which is refused.
        *("adaptive_decay", "dry_allowed_length", "dry_base", "dry_penalty_last_n", "dry_sequence_breakers"),
        *("dynatemp_exponent", "mirostat_eta", "mirostat_tau", "penalize_nl", "repeat_last_n", "xtc_threshold"),
    }
)
"""Fields accepted with any value: the text of the answer does not depend on them."""

INSTEAD: Final[Mapping[str, str]] = {
    "best_of": "use n",
    "function_call": "use tool_choice",
    "functions": "use tools",
    "ebnf": "use structured_outputs.grammar, in Lark",
    "grammar": "use structured_outputs.grammar, in Lark",
    "max_completion_tokens": "use max_tokens",
    "n_predict": "use max_tokens",
    "repeat_penalty": "use repetition_penalty",
    "t_max_predict_ms": "use generation_limit_ms",
    "top_logprobs": "use logprobs",
    "truncate_prompt_tokens": "use truncate_prompt",
}


def _neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    """True if the value asks for nothing. 1.0 equals 1; but True equals 1, and False 0, only where both are listed."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral)


_INTEGERS: Final = frozenset(
    {
        *("best_of", "longest_neighbour", "logprobs", "max_completion_tokens", "max_tokens", "min_tokens", "n"),
        *("priority", "seed", "top_k", "top_logprobs"),
    }
)


def told(value: object, chat: bool) -> object:
    """Returns the body without its null fields, and with 100.0 as 100. Raises InvalidRequest for a field that asks for
    what the embedded engine does not have."""
    if not isinstance(value, dict):
        return value
    refused = ONLY_OF_TEXT if chat else ONLY_OF_CHATS
    for table in (REFUSED, refused):
        for name in value.keys() & table.keys():
            if not _neutral(value[name], table[name]):
                raise unsupported(
                    name, INSTEAD.get(name, "it is a field of the other path" if table is refused else "")
                )
    given = {name: one for name, one in value.items() if one is not None}
    for name in given.keys() & _INTEGERS:
        if isinstance(given[name], float) and given[name].is_integer():
            given[name] = int(given[name])
    return given


def unsupported(name: str, instead: str = "") -> InvalidRequest:
    more = f"; {instead}" if instead else ""
    return InvalidRequest(f"{name} is not supported by the embedded engine{more}", param=name)
