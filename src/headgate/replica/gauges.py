"""What does an engine say about its own load? The few gauges of its /metrics that the gateway shows, by kind of engine.

For people and figures, not for routing: a scrape lags behind a burst, so what a replica has to do is counted here.
"""

import re
from collections.abc import Iterator

MOST_BYTES = 4 << 20
"""A longer text is not read to its end."""

# Of one kind: our name for it → the names it has had, the newest first. A label in braces has to match.
GAUGES: dict[str, dict[str, tuple[str, ...]]] = {
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
    },
    "tgi": {
        "waiting": ("tgi_queue_size",),
        "batch_size": ("tgi_batch_current_size",),
    },
    "tensorrt_llm": {
        "waiting": ("trtllm_num_requests_waiting",),
        "batch_size": ("trtllm_num_requests_running",),
        "kv_ratio": ("trtllm_kv_cache_utilization",),
    },
    "triton": {
        "waiting": ('nv_trt_llm_request_metrics{request_type="waiting"}',),
        "batch_size": ('nv_trt_llm_request_metrics{request_type="scheduled"}',),
        "kv_ratio": ('nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"}',),
    },
    "llama_cpp": {
        "waiting": ("llamacpp:requests_deferred",),
        "batch_size": ("llamacpp:requests_processing",),
    },
}

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(\{[^}]*\})? +(\S+)", re.MULTILINE)


def read_gauges(kind: str, text: str) -> dict[str, float]:
    """What is there of the gauges of this kind; several samples of one (by model, by type) are added up."""
    wanted = GAUGES.get(kind)
    if not wanted:
        return {}
    samples: dict[str, list[tuple[str, float]]] = {}
    for name, labels, value in _samples(text[:MOST_BYTES]):
        samples.setdefault(name, []).append((labels, value))
    found: dict[str, float] = {}
    for ours, theirs in wanted.items():
        for name in theirs:
            bare, _, label = name.rstrip("}").partition("{")
            values = [value for labels, value in samples.get(bare, ()) if label in labels]
            if values:
                found[ours] = sum(values)
                break
    return found


def _samples(text: str) -> Iterator[tuple[str, str, float]]:
    for match in _SAMPLE.finditer(text):
        try:
            value = float(match[3])
        except ValueError:
            continue
        if value == value:  # not NaN: some say so before the first request
            yield match[1], match[2] or "", value
