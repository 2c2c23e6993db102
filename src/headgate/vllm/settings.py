"""Reads how the scheduler is set up: from the environment and from vLLM's own config."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headgate.config.engine import BatchConfig

GAP_TARGET = "HEADGATE_GAP_TARGET_MS"
STEP_LIMIT = "HEADGATE_STEP_LIMIT_MS"
STEP_LOG = "HEADGATE_STEP_LOG"
LEAST_MS, MOST_MS = 1.0, 3.6e6


class BadSetting(ValueError):
    """A variable of the environment has no valid value; the message names it."""


def milliseconds(environment: Mapping[str, str], name: str) -> float | None:
    """Returns the variable's value in seconds; None: it is not set."""
    said = environment.get(name, "").strip()
    if not said:
        return None
    try:
        value = float(said)
    except ValueError:
        value = 0.0
    if not LEAST_MS <= value <= MOST_MS:
        raise BadSetting(f"{name}={said}: expected milliseconds, {LEAST_MS:g} to {MOST_MS:g}")
    return value / 1e3


def batch_config(scheduler: Any, environment: Mapping[str, str]) -> BatchConfig:
    """Returns the bounds of a step: vLLM's own, with our floor and step limit."""
    tokens = int(scheduler.max_num_scheduled_tokens)
    usual = BatchConfig()
    return BatchConfig(
        step_tokens=tokens,
        chunk_limit=tokens,
        chunk_floor=min(tokens, max(usual.chunk_floor, block_floor(scheduler))),
        step_limit_s=milliseconds(environment, STEP_LIMIT) or usual.step_limit_s,
    )


def block_floor(scheduler: Any) -> int:
    """Returns the fewest tokens that a prompt can advance by: a model with recurrent layers stores its state at the end
    of blocks, and smaller chunks would never begin."""
    aligned = getattr(scheduler, "need_mamba_block_aligned_split", False) or getattr(
        scheduler, "has_mamba_layers", False
    )
    return int(scheduler.block_size) if aligned else 1


def graph_sizes(vllm_config: Any) -> tuple[int, ...]:
    """Returns the ascending token counts that vLLM has recorded graphs of; none on a CPU or with --enforce-eager."""
    compilation = getattr(vllm_config, "compilation_config", None)
    model = getattr(vllm_config, "model_config", None)
    if compilation is None or getattr(model, "enforce_eager", False):
        return ()
    mode = getattr(getattr(compilation, "cudagraph_mode", None), "value", 1)
    if 0 in (mode[1:] if isinstance(mode, tuple) else (mode,)):  # none, or none for steps with prompts
        return ()
    sizes = getattr(compilation, "cudagraph_capture_sizes", None) or ()
    return tuple(sorted(int(size) for size in sizes))


def log_path(environment: Mapping[str, str], vllm_config: Any) -> Path | None:
    """Returns the step log's file; one of several data-parallel engines adds its rank. None: no log is asked for."""
    said = environment.get(STEP_LOG, "").strip()
    if not said:
        return None
    parallel = getattr(vllm_config, "parallel_config", None)
    rank = getattr(parallel, "data_parallel_index", None) or getattr(parallel, "data_parallel_rank", None) or 0
    return Path(f"{said}.{rank}" if rank else said)


def sizes_of(scheduler: Any) -> dict[str, str | int]:
    """Returns what the header of a step log says of the engine: a profile without its times."""
    config = scheduler.vllm_config
    block = int(scheduler.block_size)
    kv = getattr(scheduler, "kv_cache_config", None)
    blocks = int(getattr(kv, "num_blocks", 0) or 0)
    size = sum(int(getattr(tensor, "size", 0)) for tensor in getattr(kv, "kv_cache_tensors", ()))
    name = Path(str(config.model_config.model)).name or "vllm"
    tokens = int(scheduler.max_num_scheduled_tokens)
    return {
        "name": name,
        "model": name,
        "slots": int(scheduler.max_num_running_reqs),
        "context": int(config.model_config.max_model_len),
        "kv_tokens": max(1, blocks) * block,
        "host_tokens": 0,
        "block_tokens": block,
        "bytes_per_token": max(1, size // max(1, blocks * block)),
        "step_tokens": tokens,
        "chunk_limit": tokens,
    }
