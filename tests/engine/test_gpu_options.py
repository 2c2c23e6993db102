"""What the engine takes for a GPU, as far as a machine without one can tell, and a system without /proc."""

import os
from pathlib import Path

import pytest

from headgate.config.engine import EngineConfig, KvType
from headgate.engine.grammar.trial import _bound_memory
from headgate.engine.runner import llama_runner
from headgate.engine.runner.llama import Model
from headgate.engine.runner.llama_runner import LlamaRunner, available_bytes
from headgate.model.errors import UsageError
from headgate.wiring import common
from tests.engine.process import ask, headgate


def test_layers_for_a_gpu_that_the_build_does_not_have_are_refused_in_words(model_path: Path) -> None:
    with pytest.raises(UsageError, match="this build of llama"):
        Model(model_path, gpu_layers=1)


@pytest.mark.parametrize(("kv_type", "ratio"), [("f16", 2.0), ("q8_0", 34 / 32), ("q4_0", 18 / 32)])
def test_memory_per_token_follows_the_precision(model_path: Path, kv_type: KvType, ratio: float) -> None:
    model = Model(model_path, kv_type=kv_type)
    runner = LlamaRunner(model, slots=1, slot_tokens=256, threads=1)
    assert runner.bytes_per_token == round(model.kv_values_per_token * ratio)
    runner.shutdown()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kv_type", ["f16", "q4_0"])
def test_the_engine_answers_with_another_precision(kv_type: str) -> None:
    with headgate("engine", "--port", "0", "--slots", "2", "--context", "256", "--kv-type", kv_type) as (_, url):
        body = {"model": "default", "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
        status, said = ask(f"{url}/v1/completions", body)
        assert status == 200
        assert b"Paris" in said


def test_with_layers_on_a_gpu_only_what_stays_on_the_host_is_checked(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(model_path)
    monkeypatch.setattr(llama_runner, "available_bytes", lambda: 300 * 2**20)
    model.gpu_layers = 99
    LlamaRunner(model, slots=8, slot_tokens=2048, threads=1).shutdown()


def test_without_proc_all_of_the_machines_memory_counts(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) >= available_bytes()
    assert llama_runner._own_bytes(tmp_path) == 0
    _bound_memory(tmp_path / "statm")  # bounds nothing, and does not fail


def test_without_affinity_all_cores_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert common.cores() >= 1


def test_the_defaults_are_a_cpu() -> None:
    assert (EngineConfig().gpu_layers, EngineConfig().kv_type) == (0, "q8_0")
