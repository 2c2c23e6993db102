import pytest

from headgate.model.dialect import DIALECTS
from headgate.replica.gauges import MOST_SAMPLES, read_gauges
from tests.replica.kinds import METRICS

SAID = {
    "headgate": {
        "waiting": 3.0, "batch_size": 5.0, "batch_limit": 8.0, "kv_ratio": 0.25, "preemptions": 3.0, "evictions": 7.0,
        "cold_start_weights_s": 0.5,
    },
    "vllm": {"waiting": 2.0, "batch_size": 5.0, "kv_ratio": 0.5, "preemptions": 9.0},
    "sglang": {"waiting": 7.0, "batch_size": 4.0, "kv_ratio": 0.28, "preemptions": 6.0},
    "tgi": {"waiting": 5.0, "batch_size": 12.0},
    "tensorrt_llm": {"waiting": 1.0, "batch_size": 6.0, "batch_limit": 64.0, "kv_ratio": 0.62},
    "triton": {"waiting": 6.0, "batch_size": 8.0, "batch_limit": 512.0, "kv_ratio": 0.75},
    "llama_cpp": {"waiting": 3.0, "batch_size": 2.0},
}  # fmt: skip


@pytest.mark.parametrize("kind", [kind for kind, dialect in DIALECTS.items() if dialect.metrics is not None])
def test_each_kind_is_understood(kind: str) -> None:
    assert read_gauges(kind, METRICS[kind]) == SAID[kind]


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("vllm", 'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\n', {"kv_ratio": 0.5}),
        ("vllm", 'vllm:num_preemptions{model_name="m"} 2\n', {"preemptions": 2.0}),
        ("llama_cpp", "llamacpp:kv_cache_usage_ratio 0.25\n", {"kv_ratio": 0.25}),
        ("sglang", 'sglang:num_queue_reqs{model_name="m"} 3.0\n', {"waiting": 3.0}),
    ],
)
def test_older_names_are_understood_too(kind: str, text: str, said: dict[str, float]) -> None:
    assert read_gauges(kind, text) == said


def test_ranks_that_work_on_the_same_requests_are_counted_once_and_engines_that_do_not_are_added_up() -> None:
    lines = [
        f'sglang:num_running_reqs{{dp_rank="{dp}",model_name="m",tp_rank="{tp}"}} 4.0' for dp in (0, 1) for tp in (0, 1)
    ]
    assert read_gauges("sglang", "\n".join(lines)) == {"batch_size": 8.0}


def test_a_name_in_a_comment_or_within_another_is_not_that_name() -> None:
    text = "# HELP tgi_queue_size how tgi_queue_size 7 grew\nmy_tgi_queue_size 8\ntgi_queue_size_total 9\n"
    assert read_gauges("tgi", text) == {}


def test_braces_in_a_label_exemplars_and_timestamps_do_no_harm() -> None:
    text = 'vllm:num_requests_waiting{model_name="a}b {c"} 3 1700000000000\nvllm:num_requests_running 2 # {id="x"} 9\n'
    assert read_gauges("vllm", text) == {"waiting": 3.0, "batch_size": 2.0}


@pytest.mark.parametrize("value", ["-5", "1e308", "nan", "-inf"])
def test_what_can_not_be_is_not_said(value: str) -> None:
    assert read_gauges("vllm", f"vllm:num_preemptions_total {value}\nvllm:num_requests_running {value}\n") == {}
    assert read_gauges("vllm", "vllm:kv_cache_usage_perc 1.2\n") == {"kv_ratio": 1.0}


def test_an_endless_page_is_not_read_to_its_end() -> None:
    lines = "".join(f'tgi_queue_size{{who="{n}"}} 1\n' for n in range(10 * MOST_SAMPLES))
    assert read_gauges("tgi", lines) == {"waiting": float(MOST_SAMPLES)}


@pytest.mark.parametrize("kind", [*DIALECTS, "nobody", None])
def test_nonsense_says_nothing(kind: str | None) -> None:
    assert read_gauges(kind, "\x00 not metrics\nvllm:num_requests_waiting NaN\ntgi_queue_size{ x\n# EOF") == {}
