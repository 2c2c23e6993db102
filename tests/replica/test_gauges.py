import pytest

from headgate.replica.gauges import GAUGES, read_gauges

TEXTS = {
    "headgate": """# HELP headgate_engine_sequences_waiting Sequences waiting for a slot
# TYPE headgate_engine_sequences_waiting gauge
headgate_engine_sequences_waiting 3.0
headgate_engine_sequences_running 5.0
headgate_engine_slots 8.0
headgate_engine_kv_usage_ratio 0.25
headgate_engine_preemptions_total{kind="swap"} 2.0
headgate_engine_preemptions_total{kind="recompute"} 1.0
headgate_engine_prefix_evictions_total 7.0
headgate_engine_cold_start_seconds{phase="weights"} 0.5
""",
    "vllm": """vllm:num_requests_running{engine="0",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:num_preemptions_total{engine="0",model_name="m"} 9.0
""",
    "triton": """nv_trt_llm_request_metrics{model="m",request_type="waiting",version="1"} 6
nv_trt_llm_request_metrics{model="m",request_type="scheduled",version="1"} 8
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="m",version="1"} 0.75
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="m",version="1"} 300
""",
}


def test_an_engine_of_our_own_says_all_of_it() -> None:
    said = read_gauges("headgate", TEXTS["headgate"])
    assert said == {
        "waiting": 3.0,
        "batch_size": 5.0,
        "batch_limit": 8.0,
        "kv_ratio": 0.25,
        "preemptions": 3.0,
        "evictions": 7.0,
        "cold_start_weights_s": 0.5,
    }


def test_an_older_name_is_understood_too() -> None:
    assert read_gauges("vllm", TEXTS["vllm"]) == {
        "waiting": 2.0,
        "batch_size": 4.0,
        "kv_ratio": 0.5,
        "preemptions": 9.0,
    }


def test_a_label_tells_gauges_of_one_name_apart() -> None:
    assert read_gauges("triton", TEXTS["triton"]) == {"waiting": 6.0, "batch_size": 8.0, "kv_ratio": 0.75}


@pytest.mark.parametrize("kind", [*GAUGES, "openai", "nobody"])
def test_nonsense_says_nothing(kind: str) -> None:
    assert read_gauges(kind, "\x00 not metrics\nvllm:num_requests_waiting NaN\ntgi_queue_size{ x\n# EOF") == {}
