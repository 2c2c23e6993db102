"""What engines say of themselves: read where it is plausible, and not believed where it is not."""

from typing import Any

import msgspec
import pytest

from headgate.model.dialect import DIALECTS
from headgate.replica.description import MOST_BYTES, NOTHING, Description, rank_of, read_description
from headgate.replica.gauges import read_gauges
from tests.replica.kinds import METRICS

VLLM = {
    "vllm_config": {
        "scheduler_config": {"max_num_seqs": 256, "max_num_batched_tokens": 8192},
        "parallel_config": {"data_parallel_size": 2, "data_parallel_external_lb": False},
        "cache_config": {"num_gpu_blocks": 1000, "block_size": 16},
    }
}
STATE = {"effective_max_running_requests_per_dp": 128, "memory_usage": {"token_capacity": 20480}}
SAID: list[tuple[str, Any, Description]] = [
    ("vllm", VLLM, Description(batch=512, step_tokens=8192, kv_tokens=16_000, ranks=2)),
    ("sglang", {"dp_size": 1, "internal_states": [STATE]}, Description(batch=128, kv_tokens=20480, ranks=1)),
    ("sglang", {"max_running_requests": 32, "max_total_num_tokens": 9}, Description(batch=32, kv_tokens=9)),
    ("tgi", {"max_batch_size": 8, "max_batch_total_tokens": 4096}, Description(batch=8, kv_tokens=4096)),
    ("llama_cpp", {"total_slots": 4}, Description(batch=4)),
]
ABSURD = [
    "5", -1, 0, 1.5, 4.0, True, None, [], {}, [[4]], 1 << 40, 1 << 64, 10**300, float("1e308"), "NaN",
]  # fmt: skip


@pytest.mark.parametrize(("kind", "told", "expected"), SAID)
def test_each_kind_is_understood(kind: str, told: Any, expected: Description) -> None:
    assert read_description(DIALECTS[kind], msgspec.json.encode(told)) == expected


def test_a_rank_whose_others_have_addresses_of_their_own_counts_for_itself() -> None:
    alone = {"vllm_config": {**VLLM["vllm_config"], "parallel_config": {"data_parallel_size": 8}}}
    alone["vllm_config"]["parallel_config"]["data_parallel_external_lb"] = True
    assert read_description(DIALECTS["vllm"], msgspec.json.encode(alone)).batch == 256


@pytest.mark.parametrize("value", ABSURD)
@pytest.mark.parametrize("kind", ["vllm", "sglang", "tgi", "llama_cpp"])
def test_what_can_not_be_is_not_said(kind: str, value: Any) -> None:
    def spoilt(told: Any) -> Any:
        if isinstance(told, dict):
            return {name: spoilt(one) for name, one in told.items()}
        return [spoilt(one) for one in told] if isinstance(told, list) else value

    for known, told, _ in SAID:
        if known == kind:
            body = str(spoilt(told)).replace("'", '"').replace("True", "true").replace("None", "null").encode()
            assert read_description(DIALECTS[kind], body) == NOTHING


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"5", b"\xff\xfe", b"[" * 100_000, b'{"total_slots":' * 100_000, b"NaN",
        b'{"total_slots": 4, "x": "' + b"y" * MOST_BYTES + b'"}',
    ],
)  # fmt: skip
def test_a_body_that_is_no_description_says_nothing(body: bytes) -> None:
    assert read_description(DIALECTS["llama_cpp"], body) == NOTHING


def test_many_ranks_with_a_large_batch_each_stay_within_bounds() -> None:
    told = {"dp_size": 1024, "internal_states": [{"effective_max_running_requests_per_dp": 65_536}]}
    assert read_description(DIALECTS["sglang"], msgspec.json.encode(told)).batch == 65_536


def test_what_is_described_is_shown_as_a_gauge() -> None:
    assert Description(batch=4, kv_tokens=100).gauges == {"batch_limit": 4.0, "kv_tokens": 100.0}


def test_a_rank_that_is_asked_by_its_header_counts_for_itself() -> None:
    vllm = DIALECTS["vllm"]
    rank = rank_of(vllm, {"X-Data-Parallel-Rank": "1", "x-team": "blue"})
    assert rank == 1
    assert read_description(vllm, msgspec.json.encode(VLLM), rank).batch == 256
    said = read_gauges("vllm", METRICS["vllm"], rank)
    assert (said["batch_size"], said["waiting"], said["kv_ratio"]) == (1.0, 0.0, 0.125)
    assert read_gauges("vllm", METRICS["vllm"])["batch_size"] == 5.0


@pytest.mark.parametrize("value", ["", "-1", "1.5", "one", "99999", "²"])
def test_a_header_that_names_no_rank_names_none(value: str) -> None:
    assert rank_of(DIALECTS["vllm"], {"x-data-parallel-rank": value}) is None
    assert rank_of(DIALECTS["llama_cpp"], {"x-data-parallel-rank": "1"}) is None
