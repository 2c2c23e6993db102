"""Computes a step of a Llama model: from token ids to the logits of the rows that draw."""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from headgate.engine.torch.cache import Cache
from headgate.engine.torch.shape import ModelShape
from headgate.engine.torch.weights import Weights
from headgate.engine.torch.work import Laid


class Operations(Protocol):
    """What is done between the matrix products."""

    tile: int
    """Tokens of a prompt that one tile may have."""

    def norm(self, x: Tensor, weight: Tensor) -> Tensor: ...
    def add_norm(self, x: Tensor, more: Tensor, weight: Tensor) -> Tensor:
        """Adds `more` to `x` in place, and returns the norm of the sum."""

    def gate(self, both: Tensor) -> Tensor: ...
    def rotate(self, qkv: Tensor, work: Laid, layer: int) -> None:
        """Rotates queries in place, and writes rotated keys, and values, to their pages."""

    def attend(self, qkv: Tensor, work: Laid, layer: int) -> Tensor: ...
    def best_of(self, logits: Tensor) -> Tensor: ...
    def draw(
        self, logits: Tensor, temperature: Tensor, top_p: Tensor, top_k: Tensor, min_p: Tensor, chance: Tensor
    ) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class LlamaModel:
    shape: ModelShape
    weights: Weights
    cache: Cache
    operations: Operations

    @property
    def device(self) -> torch.device:
        return self.weights.norm.device

    def logits(self, work: Laid) -> Tensor:
        """Returns the logits of the single rows, then of the chunks that draw."""
        ops, weights = self.operations, self.weights
        x = F.embedding(work.ids, weights.tokens)
        normed = ops.norm(x, weights.layers[0].before_attention)
        nexts = [*(layer.before_attention for layer in weights.layers[1:]), weights.norm]
        for number, (layer, following) in enumerate(zip(weights.layers, nexts, strict=True)):
            qkv = F.linear(normed, layer.qkv)
            ops.rotate(qkv, work, number)
            mixed = ops.attend(qkv, work, number)
            normed = ops.add_norm(x, F.linear(mixed, layer.out), layer.before_inner)
            inner = ops.gate(F.linear(normed, layer.gate_up))
            normed = ops.add_norm(x, F.linear(inner, layer.down), following)
        size = work.size
        if size.chunked:
            rows = normed[: size.singles]
            normed = torch.cat((rows, normed[work.ends])) if size.chunks else rows
        return F.linear(normed, weights.head)
