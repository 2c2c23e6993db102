"""Reads an engine's own gauges from its metrics, as few as the gateway shows, by kind of engine.

They are for display, not for routing: a scrape lags behind a burst, so the gateway counts each replica's work itself.
Names are searched in the text one by one: a page of metrics can have thousands of lines, and streams must not wait
until each has been parsed.
"""

import re
from collections.abc import Iterator
from math import isfinite

MOST_BYTES = 4 << 20
"""Bytes of the text that are read."""
MOST_SAMPLES = 256
"""Maximum samples of one name."""
MOST_LOOKS = 4 * MOST_SAMPLES
"""Maximum occurrences of a name that are looked at."""
MOST = 1e15
"""Maximum of a value: a larger one is nonsense."""
LONGEST_LINE = 4096
"""Characters of a line that are looked at."""

Names = dict[str, tuple[str, ...]]
"""Our name → the engine's names for the gauge, the newest first. A label in braces has to match."""

GAUGES: dict[str, Names] = {
    "headgate": {
        "waiting": ("headgate_engine_sequences_waiting",),
        "batch_size": ("headgate_engine_sequences_running",),
        "batch_limit": ("headgate_engine_slots",),
        "kv_ratio": ("headgate_engine_kv_usage_ratio",),
        "preemptions": ("headgate_engine_preemptions_total",),
        "evictions": ("headgate_engine_prefix_evictions_total",),
        "cold_start_process_s": ('headgate_engine_cold_start_seconds{phase="process"}',),
        "cold_start_weights_s": ('headgate_engine_cold_start_seconds{phase="weights"}',),
        "cold_start_kv_s": ('headgate_engine_cold_start_seconds{phase="KV"}',),
        "cold_start_warm_up_s": ('headgate_engine_cold_start_seconds{phase="warm-up"}',),
    },
    "vllm": {
        "waiting": ("vllm:num_requests_waiting",),
        "batch_size": ("vllm:num_requests_running",),
        "kv_ratio": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "preemptions": ("vllm:num_preemptions_total", "vllm:num_preemptions"),
    },
    "sglang": {
        "waiting": ("sglang:num_queue_reqs",),
        "batch_size": ("sglang:num_running_reqs",),
        "kv_ratio": ("sglang:token_usage",),
        "preemptions": ("sglang:num_retracted_requests_total",),
    },
    "tgi": {
        "waiting": ("tgi_queue_size",),
        "batch_size": ("tgi_batch_current_size",),
    },
    "tensorrt_llm": {
        "waiting": ("trtllm_num_requests_waiting",),
        "batch_size": ("trtllm_num_requests_running",),
        "batch_limit": ("trtllm_max_num_active_requests",),
        "kv_ratio": ("trtllm_kv_cache_utilization",),
    },
    "triton": {
        "waiting": ('nv_trt_llm_request_metrics{request_type="waiting"}',),
        "batch_size": ('nv_trt_llm_request_metrics{request_type="scheduled"}',),
        "batch_limit": ('nv_trt_llm_request_metrics{request_type="max"}',),
        "kv_ratio": ('nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"}',),
    },
    "llama_cpp": {
        "waiting": ("llamacpp:requests_deferred",),
        "batch_size": ("llamacpp:requests_processing",),
        "kv_ratio": ("llamacpp:kv_cache_usage_ratio",),
    },
}

SHARES = frozenset(("kv_ratio",))
"""Gauges of which the largest sample counts, not the sum: the engine whose memory is full is the one that will
evict."""

_RANK = re.compile(r'(?:^|,)(?:tp|pp|moe_ep)_rank="[^"]*"')
"""Ranks that work on the same requests, and may each report them."""
_PART = re.compile(r'(?:^|,)priority="[^"]')
"""SGLang with priorities: the total has an empty priority, and each priority's part stands beside it."""


def text_of_gauges(body: bytes) -> str:
    return body[:MOST_BYTES].decode("utf-8", "replace")


def read_gauges(kind: str | None, text: str) -> dict[str, float]:
    """The gauges of this kind that the text has; several samples of one gauge (by model, by engine) are added up."""
    found: dict[str, float] = {}
    text = text[:MOST_BYTES]
    for ours, theirs in GAUGES.get(kind or "", {}).items():
        for name in theirs:
            bare, _, wanted = name.rstrip("}").partition("{")
            values: dict[str, float] = {}
            for labels, value in _samples(text, bare):
                if wanted in labels and not _PART.search(labels):
                    who = _RANK.sub("", labels)
                    values[who] = max(value, values.get(who, value))
            if values:
                found[ours] = min(1.0, max(values.values())) if ours in SHARES else sum(values.values())
                break
    return found


def _samples(text: str, name: str) -> Iterator[tuple[str, float]]:
    """Labels and value of each line of exactly this name."""
    at, seen, looks = text.find(name), 0, 0
    while at >= 0 and seen < MOST_SAMPLES and looks < MOST_LOOKS:
        looks += 1
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        rest = text[at + len(name) : min(end, at + LONGEST_LINE)]
        if (at == 0 or text[at - 1] == "\n") and rest[:1] in ("{", " "):
            labels, _, value = rest.partition(" # ")[0].rpartition("}")
            number = _number(value.split())
            if number is not None:
                seen += 1
                yield labels[1:], number
        at = text.find(name, end)


def _number(words: list[str]) -> float | None:
    """None: the word is no number, not finite (some engines say NaN before the first request), below 0, or too
    large."""
    try:
        value = float(words[0]) if words else float("nan")
    except ValueError:
        return None
    return value if isfinite(value) and 0.0 <= value <= MOST else None
