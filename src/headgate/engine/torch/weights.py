"""Puts a model's weights on a device: those of a folder's safetensors files, or random ones where it has none.

The projections of queries, keys and values are one matrix, and so are the two that a feed-forward layer begins with: a
step of one sequence is as long as its matrices take to read, and fewer, larger ones are read faster.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from headgate.engine.torch.shape import ModelShape
from headgate.model.errors import StartupError

SPREAD = 0.02
"""Standard deviation of random weights."""
SEED = 20_26


@dataclass(frozen=True, slots=True)
class Layer:
    before_attention: Tensor
    """The norm's weights."""
    qkv: Tensor
    out: Tensor
    before_inner: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class Weights:
    tokens: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Tensor
    cos: Tensor
    sin: Tensor


Take = Callable[[str, tuple[int, ...]], Tensor]
"""Returns the tensor of this name, which must have this shape."""


def has_weights(folder: Path) -> bool:
    return any(folder.glob("*.safetensors"))


def read_weights(folder: Path, shape: ModelShape, device: torch.device, dtype: torch.dtype) -> Weights:
    """Raises StartupError where a tensor is missing or has another shape."""
    take = _Files(folder, device, dtype) if has_weights(folder) else _Random(device, dtype)
    h, q, kv = shape.hidden, shape.heads * shape.head, shape.kv_heads * shape.head
    tokens = take("model.embed_tokens.weight", (shape.vocabulary, h))
    layers = []
    for number in range(shape.layers):
        name = f"model.layers.{number}."
        attention, inner = name + "self_attn.", name + "mlp."
        parts = (("q", q), ("k", kv), ("v", kv))
        qkv = torch.cat([take(f"{attention}{part}_proj.weight", (size, h)) for part, size in parts])
        gate_up = torch.cat([take(f"{inner}{part}_proj.weight", (shape.inner, h)) for part in ("gate", "up")])
        layers.append(
            Layer(
                take(name + "input_layernorm.weight", (h,)),
                qkv,
                take(attention + "o_proj.weight", (h, q)),
                take(name + "post_attention_layernorm.weight", (h,)),
                gate_up,
                take(inner + "down_proj.weight", (h, shape.inner)),
            )
        )
    norm = take("model.norm.weight", (h,))
    head = tokens if shape.tied else take("lm_head.weight", (shape.vocabulary, h))
    return Weights(tokens, tuple(layers), norm, head, *rotations(shape, device))


class _Random:
    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._like = {"device": device, "dtype": dtype}
        self._chance = torch.Generator(device).manual_seed(SEED)

    def __call__(self, name: str, size: tuple[int, ...]) -> Tensor:
        if len(size) == 1:
            return torch.ones(size, **self._like)
        return torch.empty(size, **self._like).normal_(0.0, SPREAD, generator=self._chance)


class _Files:
    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
        self._folder, self._device, self._dtype = folder, device, dtype
        self._file_of = _index(folder)

    def __call__(self, name: str, size: tuple[int, ...]) -> Tensor:
        from safetensors import SafetensorError, safe_open

        path = self._folder / self._file_of.get(name, "model.safetensors")
        try:
            with safe_open(path, framework="pt", device=str(self._device)) as file:
                found: Tensor = file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise StartupError(f"{path}: can't read {name} ({error}); fetch the model again") from error
        if tuple(found.shape) != size:
            raise StartupError(f"{path}: {name} is {tuple(found.shape)}, and config.json makes it {size}")
        return found.to(self._dtype)


def _index(folder: Path) -> dict[str, str]:
    """Returns the file of each tensor, by the index of a model in several files; empty: there is one file."""
    path = folder / "model.safetensors.index.json"
    try:
        found: dict[str, str] = msgspec.json.decode(path.read_bytes())["weight_map"]
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, KeyError, TypeError) as error:
        raise StartupError(f"{path} is not an index of weights ({error}); fetch the model again") from error
    return found


def rotations(shape: ModelShape, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns cosine and sine of every position's rotations, in float32."""
    steps = torch.arange(0, shape.head, 2, dtype=torch.float64)
    speeds = shape.theta ** (-steps / shape.head)
    if (stretch := shape.scaling) is not None:
        # Fast rotations stay, slow ones are stretched, and between the two wavelengths it is a mixture.
        turns = stretch.trained_on * speeds / (2 * math.pi)
        share = ((turns - stretch.low) / (stretch.high - stretch.low)).clamp(0.0, 1.0)
        speeds = speeds * (share + (1.0 - share) / stretch.factor)
    angles = torch.arange(shape.longest, dtype=torch.float64)[:, None] * speeds[None]
    return angles.cos().float().to(device), angles.sin().float().to(device)
