"""Builds an engine around a model in a Hugging Face folder."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch

from headgate.config.engine import BatchConfig, EngineConfig
from headgate.engine.engine import Engine, Sink
from headgate.engine.intake import Intake
from headgate.engine.torch.ahead import AheadEngine
from headgate.engine.torch.cache import Cache
from headgate.engine.torch.llama import LlamaModel, Operations
from headgate.engine.torch.pages import PageLedger
from headgate.engine.torch.plain import PlainOperations
from headgate.engine.torch.shape import ModelShape, read_shape
from headgate.engine.torch.torch_runner import TorchRunner
from headgate.engine.torch.vocabulary import tokenizer_in
from headgate.engine.torch.weights import Weights, read_weights
from headgate.model.clock import Clock
from headgate.model.errors import StartupError
from headgate.policy.compose import BLOCK_TOKENS, batcher_over

SLOTS: Final = {"cuda": 128, "cpu": 8}
"""Sequences at once, if the config does not say."""
CONTEXT: Final = {"cuda": 32_768, "cpu": 2048}
CHUNK_LIMIT: Final = {"cuda": 2048, "cpu": 512}
"""Maximum prompt tokens of a step. On a GPU a longer chunk is computed no faster per token."""
KV_SHARE: Final = 0.9
"""Share of a GPU's memory that weights, KV and all else may take."""
WORKING_BYTES: Final = 5 * 2**30
"""The part of it for intermediate values, graphs and libraries."""
FIRST_STEP_S: Final = {"cuda": (0.006, 2.4e-5, 1.5e-5, 2e-6), "cpu": (0.005, 0.005, 0.005, 0.001)}
"""The first values of StepTime's coefficients: about an 8B model's on an H200."""


@dataclass(frozen=True, slots=True)
class Folder:
    """What is known of a model before its weights are read, and where it is to run."""

    path: Path
    shape: ModelShape
    device: torch.device
    config: EngineConfig
    """Complete: what was not given is chosen."""

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32


def look_at(path: Path, given: EngineConfig, named: frozenset[str]) -> Folder:
    """Raises StartupError where this can't be run. `named`: the fields of the config that the operator set."""
    shape, device = read_shape(path), _device(given.device)
    kind = device.type
    if given.loras:
        raise StartupError("--lora: this engine applies no adapters to a Hugging Face model; merge it, or use vLLM")
    if given.draft_batch:
        raise StartupError("--draft-batch: this engine drafts only for a GGUF file; leave it out")
    if given.host_tokens:
        raise StartupError("--host-tokens: this engine keeps no KV in host memory; leave it out")
    if named & {"gpu_layers", "kv_type"}:
        raise StartupError("--gpu-layers and --kv-type are for a GGUF file; leave them out, or choose with --device")
    slots = given.slots if "slots" in named else SLOTS[kind]
    context = given.context if "context" in named else min(shape.longest, CONTEXT[kind])
    if context > shape.longest:
        raise StartupError(
            f"a context of {context} tokens is more than the {shape.longest} this model was trained on; lower --context"
        )
    config = replace(given, slots=slots, context=context, host_tokens=0, model_name=given.model_name or path.name)
    return Folder(path, shape, device, config)


def torch_engine(
    folder: Folder, template: str | None, *, clock: Clock, sink: Sink, ids: Iterator[int], rng: random.Random
) -> tuple[Engine, Intake]:
    """Returns an engine and intake for `EngineServer.adopt`."""
    shape, device, config = folder.shape, folder.device, folder.config
    if device.type == "cpu" and config.threads is not None:
        torch.set_num_threads(config.threads)
    with torch.inference_mode():
        weights = read_weights(folder.path, shape, device, folder.dtype)
        ledger = PageLedger(
            slots=config.slots, slot_tokens=config.context, blocks=kv_blocks(folder), block_tokens=BLOCK_TOKENS
        )
        cache = Cache(shape, ledger, device, folder.dtype)
    model = LlamaModel(shape, weights, cache, _operations(folder, weights, cache))
    batch = config.batch(usual(device.type, config.slots))
    tokenizer = tokenizer_in(folder.path, shape.vocabulary, shape.ends, template)
    # On a CPU a step launched behind another would only begin sooner what the same cores have to do anyway.
    ahead = device.type == "cuda"
    runner = TorchRunner(model, ledger, ends=tokenizer.eog, step_tokens=batch.step_tokens, ahead=ahead, clock=clock)
    runner.record()
    batcher = batcher_over(ledger, batch, FIRST_STEP_S[device.type])
    engine = AheadEngine(runner, tokenizer, batcher, clock, sink)
    return engine, Intake(config, tokenizer, ledger.longest, ids, rng)


def usual(kind: str, slots: int) -> BatchConfig:
    """The batch settings for this kind of device."""
    chunk = CHUNK_LIMIT[kind]
    return BatchConfig(step_tokens=chunk + slots, chunk_limit=chunk, draft_batch=0)


def kv_blocks(folder: Folder) -> int:
    """Returns the blocks of KV memory: as asked for, or as many as the slots hold and the device has room for. Call it
    when the weights are there."""
    config, shape = folder.config, folder.shape
    most = config.slots * config.context
    wanted = most if config.kv_tokens is None else config.kv_tokens
    if folder.device.type == "cuda":
        free, total = torch.cuda.mem_get_info(folder.device)
        room = free - (1 - KV_SHARE) * total - WORKING_BYTES
        size = shape.kv_values_per_token * folder.dtype.itemsize
        fits = int(room / size) - (config.slots + 1) * BLOCK_TOKENS
        if config.kv_tokens is None:
            wanted = min(wanted, fits)
        if wanted > fits or wanted < config.context:
            raise StartupError(
                f"beside the weights this GPU has room for {max(0, fits)} tokens of KV, and a slot has "
                f"{config.context}; lower --context, --slots or --kv-tokens"
            )
    return wanted // BLOCK_TOKENS


def _operations(folder: Folder, weights: Weights, cache: Cache) -> Operations:
    shape = folder.shape
    if folder.device.type == "cpu":
        return PlainOperations(shape, weights, cache)
    if shape.head & (shape.head - 1):
        raise StartupError(f"on a GPU a head's size must be a power of 2, not {shape.head}; serve the model with vLLM")
    from headgate.engine.torch.fused import FusedOperations

    return FusedOperations(shape, weights, cache)


def _device(asked: str | None) -> torch.device:
    if asked == "cuda" and not torch.cuda.is_available():
        raise StartupError("--device cuda: PyTorch finds no GPU here; use --device cpu, or install a driver")
    return torch.device(asked or ("cuda" if torch.cuda.is_available() else "cpu"))
