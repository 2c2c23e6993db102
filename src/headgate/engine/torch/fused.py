"""Launches the Triton kernels, with block sizes for the model's shape."""

import math
from typing import Final

import torch
from torch import Tensor

from headgate.engine.torch import kernels
from headgate.engine.torch.cache import Cache
from headgate.engine.torch.plain import PlainOperations
from headgate.engine.torch.shape import ModelShape
from headgate.engine.torch.weights import Weights
from headgate.engine.torch.work import Laid

_LOG2E: Final = 1.4426950408889634
TILE_ROWS: Final = 128
"""Queries of a tile: its tokens times the heads that share a KV head."""
CONTEXT_BLOCK: Final = 64
LEAST_PART: Final = 128
"""Minimum tokens of context that a program reads for a single row: fewer would be merged more slowly than read."""
PROGRAMS: Final = 1056
"""Programs among which the context of all single rows is shared: eight for each multiprocessor of an H100 or H200."""
MOST_PARTS: Final = 64
ROUNDS: Final = 24
"""Halvings with which the bounds of top_k and top_p are found: logits have 8 significant bits."""


class FusedOperations:
    """Implements `llama.Operations`."""

    def __init__(self, shape: ModelShape, weights: Weights, cache: Cache) -> None:
        self._shape, self._weights, self._cache = shape, weights, cache
        self._group = shape.heads // shape.kv_heads
        self.tile = TILE_ROWS // self._group
        together = math.gcd(shape.heads, shape.kv_heads)
        self._together = min(8, together & -together)
        self._scale = _LOG2E / math.sqrt(shape.head)
        self._plain = PlainOperations(shape, weights, cache)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        out = torch.empty_like(x)
        rows, width = x.shape
        kernels.norm[(rows,)](x, weight, out, width, self._shape.eps, BLOCK=_power(width), num_warps=8)
        return out

    def add_norm(self, x: Tensor, more: Tensor, weight: Tensor) -> Tensor:
        out = torch.empty_like(x)
        rows, width = x.shape
        kernels.add_norm[(rows,)](x, more, weight, out, width, self._shape.eps, BLOCK=_power(width), num_warps=8)
        return out

    def gate(self, both: Tensor) -> Tensor:
        rows, width = both.shape[0], both.shape[1] // 2
        out = both.new_empty((rows, width))
        kernels.gate[(rows, -(-width // 1024))](both, out, width, BLOCK=1024, num_warps=4)
        return out

    def rotate(self, qkv: Tensor, work: Laid, layer: int) -> None:
        shape, cache = self._shape, self._cache
        grid = (len(qkv), (shape.heads + 2 * shape.kv_heads) // self._together)
        kernels.rotate[grid](
            qkv, work.positions, work.slots, cache.tables, self._weights.cos, self._weights.sin,
            cache.keys[layer], cache.values[layer], cache.width,
            HEADS=shape.heads, KV_HEADS=shape.kv_heads, HALF=shape.head // 2, PAGE=cache.page_tokens,
            GROUP=self._together, num_warps=2,
        )  # fmt: skip

    def attend(self, qkv: Tensor, work: Laid, layer: int) -> Tensor:
        shape, size = self._shape, work.size
        out = qkv.new_empty((len(qkv), shape.heads * shape.head))
        if size.singles:
            self._attend_singles(qkv, out, work, layer)
        if size.tiles:
            self._attend_tiles(qkv, out, work, layer)
        return out

    def _attend_singles(self, qkv: Tensor, out: Tensor, work: Laid, layer: int) -> None:
        shape, cache, rows = self._shape, self._cache, work.size.singles
        parts = min(MOST_PARTS, max(4, _power(PROGRAMS // (rows * shape.kv_heads))))
        said = torch.empty((rows, shape.heads, parts, shape.head), dtype=torch.float32, device=qkv.device)
        weights = torch.empty((rows, shape.heads, parts), dtype=torch.float32, device=qkv.device)
        kernels.attend_single[(rows, shape.kv_heads, parts)](
            qkv, work.positions, work.slots, cache.tables, cache.keys[layer], cache.values[layer], said, weights,
            cache.width, self._scale,
            HEADS=shape.heads, KV_HEADS=shape.kv_heads, HEAD=shape.head, PAGE=cache.page_tokens, GROUP=self._group,
            ROWS=max(16, _power(self._group)), BLOCK=CONTEXT_BLOCK, PARTS=parts, LEAST=LEAST_PART,
            num_warps=4, num_stages=3,
        )  # fmt: skip
        kernels.merge[(rows, shape.heads)](
            said, weights, work.positions, out, HEADS=shape.heads, HEAD=shape.head, BLOCK=CONTEXT_BLOCK, PARTS=parts,
            LEAST=LEAST_PART, num_warps=4,
        )  # fmt: skip

    def _attend_tiles(self, qkv: Tensor, out: Tensor, work: Laid, layer: int) -> None:
        shape, cache = self._shape, self._cache
        kernels.attend_tile[(shape.kv_heads, work.size.tiles)](
            qkv, work.tiles, cache.tables, cache.keys[layer], cache.values[layer], out, cache.width, self._scale,
            HEADS=shape.heads, KV_HEADS=shape.kv_heads, HEAD=shape.head, PAGE=cache.page_tokens, GROUP=self._group,
            ROWS=TILE_ROWS, BLOCK=CONTEXT_BLOCK, num_warps=8, num_stages=3,
        )  # fmt: skip

    def best_of(self, logits: Tensor) -> Tensor:
        return self._plain.best_of(logits)

    def draw(
        self, logits: Tensor, temperature: Tensor, top_p: Tensor, top_k: Tensor, min_p: Tensor, chance: Tensor
    ) -> Tensor:
        logits = logits.contiguous()
        tokens = torch.empty(len(logits), dtype=torch.int32, device=logits.device)
        kernels.draw[(len(logits),)](
            logits, temperature, top_p, top_k, min_p, chance, tokens, logits.shape[1], ROUNDS=ROUNDS, BLOCK=8192,
            num_warps=8,
        )  # fmt: skip
        return tokens


def _power(count: int) -> int:
    """Returns the lowest power of 2 that is not below `count`."""
    return 1 << max(0, count - 1).bit_length()
