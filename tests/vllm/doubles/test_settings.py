"""What the scheduler inside vLLM reads of its environment, of vLLM, and of a request."""

import json
import subprocess
import sys
from enum import Enum
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from headgate.engine.runner.step_log import read, read_header
from headgate.vllm import settings
from headgate.vllm.counters import StepCounters
from headgate.vllm.hooks import StepHooks, part_of
from headgate.vllm.supported import OF_SCHEDULER, UnsupportedVllm, check, version
from headgate.vllm.wishes import Mirror, wish
from tests.vllm.doubles.mini import Asked, Driver, MiniVllm
from tests.vllm.doubles.test_part import two_cores, wishes


class Graphs(Enum):
    NONE = 0
    PIECEWISE = 1
    FULL_DECODE_ONLY = (2, 0)
    FULL_AND_PIECEWISE = (2, 1)


def set_up(**more: Any) -> Any:
    """A scheduler with the config that vLLM gives it."""
    scheduler: Any = MiniVllm(tokens=512)
    scheduler.policy = "fcfs"
    scheduler.block_size = 16
    scheduler.scheduler_config = SimpleNamespace(enable_chunked_prefill=True)
    scheduler.parallel_config = SimpleNamespace(pipeline_parallel_size=1, data_parallel_index=0)
    scheduler.kv_cache_config = SimpleNamespace(num_blocks=100, kv_cache_tensors=[SimpleNamespace(size=160_000)])
    scheduler.vllm_config = SimpleNamespace(
        compilation_config=SimpleNamespace(cudagraph_mode=Graphs.NONE, cudagraph_capture_sizes=[8, 4, 16]),
        model_config=SimpleNamespace(enforce_eager=False, model="/models/tiny", max_model_len=4096),
        parallel_config=scheduler.parallel_config,
    )
    for name, value in more.items():
        setattr(scheduler, name, value)
    return scheduler


@pytest.mark.parametrize(("value", "taken"), [(300, 0.3), (300.5, 0.3005), (0.1, 0.001), (1e12, 3600.0)])
def test_a_wish_is_taken_within_bounds(value: float, taken: float) -> None:
    assert wish({"headgate_gap_ms": value}, "gap_ms", 1.0, 3.6e6) == pytest.approx(1e3 * taken)


@pytest.mark.parametrize("value", ["300", True, None, nan, inf, [300], {}])
def test_a_wish_that_makes_no_sense_is_none(value: Any) -> None:
    assert wish({"headgate_gap_ms": value}, "gap_ms", 1.0, 3.6e6) is None


def made(request: Asked, gap_target_s: float | None = None, now: float = 5.0, wall: float = 100.0) -> Any:
    return Mirror(gap_target_s).of(request, now, wall)


def test_a_request_without_wishes_is_in_the_lane_of_its_length() -> None:
    short, long = made(Asked("a", 60, 8, 99.5)), made(Asked("b", 600, 8, 99.5))
    assert (short.lane, short.priority, short.arrived, short.first_token_by) == ("fast", 0, 4.5, 5.0)
    assert (long.lane, long.priority, long.first_token_by, long.gap_target_s) == ("slow", 1, 6.5, 0.2)
    assert made(Asked("c", 60, 8, 99.5), 0.1).gap_target_s == 0.1
    assert made(Asked("d", 60, 8, 99.5, priority=7)).priority == 7
    assert made(Asked("e", 60, 8, 99.5, priority=-7)).priority == 0


def test_an_arrival_in_the_future_or_long_past_is_bounded() -> None:
    assert made(Asked("a", 60, 8, 200.0)).arrived == 5.0
    assert made(Asked("a", 60, 8, -1e9)).arrived == 5.0 - 3600.0


def test_a_request_says_what_it_wishes() -> None:
    params = wishes(priority=2, ttft_ms=700, gap_ms=50, uncached_tokens=100)
    one = made(Asked("a", 600, 8, 100.0, sampling_params=params))
    assert (one.priority, one.first_token_by, one.gap_target_s) == (2, 5.7, 0.05)
    assert (one.lane, one.expected, one.computed, one.pending) == ("fast", 100, 500, 100)
    nothing = made(Asked("b", 600, 8, 100.0, sampling_params=wishes(uncached_tokens=0)))
    assert nothing.pending == 1
    pooling = made(Asked("c", 600, 8, 100.0, sampling_params=None))
    assert pooling.lane == "slow"


def test_variables_are_milliseconds() -> None:
    assert settings.milliseconds({}, "HEADGATE_GAP_TARGET_MS") is None
    assert settings.milliseconds({"HEADGATE_GAP_TARGET_MS": " 150 "}, "HEADGATE_GAP_TARGET_MS") == 0.15
    for wrong in ("fast", "0", "-5", "nan", "1e9"):
        with pytest.raises(settings.BadSetting, match=r"HEADGATE_GAP_TARGET_MS=.*expected milliseconds"):
            settings.milliseconds({"HEADGATE_GAP_TARGET_MS": wrong}, "HEADGATE_GAP_TARGET_MS")


def test_a_hybrid_model_advances_by_blocks() -> None:
    assert settings.batch_config(set_up(), {}).chunk_floor == 8
    hybrid = settings.batch_config(set_up(has_mamba_layers=True, block_size=400), {"HEADGATE_STEP_LIMIT_MS": "250"})
    assert (hybrid.chunk_floor, hybrid.chunk_limit, hybrid.step_limit_s) == (400, 512, 0.25)
    assert settings.batch_config(set_up(need_mamba_block_aligned_split=True, block_size=900), {}).chunk_floor == 512


@pytest.mark.parametrize(
    ("mode", "eager", "sizes"),
    [
        (Graphs.NONE, False, ()),
        (Graphs.PIECEWISE, False, (4, 8, 16)),
        (Graphs.FULL_AND_PIECEWISE, False, (4, 8, 16)),
        (Graphs.FULL_DECODE_ONLY, False, ()),
        (Graphs.PIECEWISE, True, ()),
        (None, False, (4, 8, 16)),
    ],
)
def test_the_graphs_that_count_are_those_of_steps_with_prompts(
    mode: Graphs | None, eager: bool, sizes: tuple[int]
) -> None:
    config = set_up().vllm_config
    config.compilation_config.cudagraph_mode = mode
    config.model_config.enforce_eager = eager
    assert settings.graph_sizes(config) == sizes
    assert settings.graph_sizes(SimpleNamespace()) == ()


def test_each_data_parallel_engine_has_a_log_of_its_own() -> None:
    config = set_up().vllm_config
    assert settings.log_path({}, config) is None
    assert settings.log_path({"HEADGATE_STEP_LOG": "a.jsonl"}, config) == Path("a.jsonl")
    config.parallel_config.data_parallel_index = 2
    assert settings.log_path({"HEADGATE_STEP_LOG": "a.jsonl"}, config) == Path("a.jsonl.2")


def test_versions() -> None:
    assert check("0.32.0") is check("0.32.7") is None
    assert "tested on vLLM 0.31 and 0.32, this is 0.20.2" in (check("0.20.2") or "")
    assert "unknown" in (check(None) or "")
    with pytest.raises(UnsupportedVllm, match=r"needs vLLM 0\.12 or newer, this is 0\.11\.2"):
        check("0.11.2")
    assert version() is None  # not in this environment


def test_what_is_not_supported_is_refused_in_words() -> None:
    scheduler = set_up()
    scheduler.parallel_config.pipeline_parallel_size = 2
    with pytest.raises(UnsupportedVllm, match=r"pipeline parallelism.*--tensor-parallel-size"):
        part_of(scheduler, StepCounters(CollectorRegistry()))
    for name in OF_SCHEDULER:
        scheduler = set_up()
        delattr(scheduler, name)
        with pytest.raises(UnsupportedVllm, match=f"has no {name}"):
            part_of(scheduler, StepCounters(CollectorRegistry()))


def test_without_chunked_prefill_only_the_order_is_chosen() -> None:
    scheduler = set_up(scheduler_config=SimpleNamespace(enable_chunked_prefill=False))
    hooks = StepHooks(part_of(scheduler, StepCounters(CollectorRegistry())))
    scheduler.add(Asked("s", 40, 90, 0.0))
    scheduler.update_from_output(hooks.schedule(scheduler, scheduler.schedule))
    scheduler.add(Asked("long", 400, 4, 0.0))
    assert hooks.schedule(scheduler, scheduler.schedule).num_scheduled_tokens == {"s": 1, "long": 400}


def test_while_vllm_is_paused_nothing_is_chosen() -> None:
    registry = CollectorRegistry()
    scheduler = set_up(_pause_state=SimpleNamespace(value=1))
    hooks = StepHooks(part_of(scheduler, StepCounters(registry)))
    scheduler.add(Asked("s", 40, 90, 0.0))
    hooks.schedule(scheduler, scheduler.schedule)
    assert "headgate_vllm_steps_total 0.0" in generate_latest(registry).decode()


def test_the_step_log_is_one_that_fit_reads_and_counters_are_on_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "steps.jsonl"
    monkeypatch.setenv("HEADGATE_STEP_LOG", str(path))
    registry, driver, scheduler = CollectorRegistry(), Driver(two_cores), set_up()
    part = part_of(scheduler, StepCounters(registry), lambda: driver.now)
    hooks = StepHooks(part, lambda: driver.now, lambda: driver.now)
    schedule, update = scheduler.schedule, scheduler.update_from_output

    def updated(output: Any) -> Any:
        spoke = update(output)
        hooks.back(scheduler, output)
        return spoke

    scheduler.schedule = lambda: hooks.schedule(scheduler, schedule)
    scheduler.update_from_output = updated
    driver.run(scheduler, [(100.0, Asked("s", 40, 60, 100.0)), (101.0, Asked("long", 1500, 4, 101.0))])
    assert part._lines is not None
    part._lines.close()
    header = read_header(path)
    assert header.profile == {
        "name": "tiny", "model": "tiny", "slots": 8, "context": 4096, "kv_tokens": 1600, "host_tokens": 0,
        "block_tokens": 16, "bytes_per_token": 100, "step_tokens": 512, "chunk_limit": 512,
    }  # fmt: skip
    lines = list(read(path))
    assert sum(line.shape.prefill for line in lines) == 1540
    assert sum(line.shape.decodes for line in lines) == 59 + 3
    assert lines[0].at == 0.0
    assert lines[0].shape.pairs == json.loads(path.read_bytes().splitlines()[1])["prefill"][0][1] ** 2
    said = generate_latest(registry).decode()
    assert f"headgate_vllm_steps_total {float(len(lines))}" in said
    assert "headgate_vllm_slots 8.0" in said
    assert "headgate_vllm_failures_total 0.0" in said


def test_the_scheduler_needs_nothing_but_what_vllm_has() -> None:
    """Everything but its base class, in an interpreter where Headgate's other dependencies can't be imported."""
    script = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in %r: raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import headgate.vllm.hooks, headgate.vllm.counters
"""
    others = ("cyclopts", "httptools", "jinja2", "msgspec", "numpy", "opentelemetry", "yaml", "rich", "uvloop")
    subprocess.run([sys.executable, "-c", script % (others,)], check=True)
