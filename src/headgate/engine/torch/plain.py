"""Computes a layer's small operations with plain PyTorch: on a CPU, and as the reference for the fused kernels."""

import torch
import torch.nn.functional as F
from torch import Tensor

from headgate.engine.torch.cache import Cache
from headgate.engine.torch.shape import ModelShape
from headgate.engine.torch.weights import Weights
from headgate.engine.torch.work import Laid


class PlainOperations:
    """Implements `llama.Operations`."""

    tile = 64

    def __init__(self, shape: ModelShape, weights: Weights, cache: Cache) -> None:
        self._shape, self._weights, self._cache = shape, weights, cache

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), weight.float(), self._shape.eps).to(x.dtype)

    def add_norm(self, x: Tensor, more: Tensor, weight: Tensor) -> Tensor:
        x += more
        return self.norm(x, weight)

    def gate(self, both: Tensor) -> Tensor:
        gate, up = both.chunk(2, -1)
        return F.silu(gate) * up

    def rotate(self, qkv: Tensor, work: Laid, layer: int) -> None:
        shape, cache, positions = self._shape, self._cache, work.positions.long()
        heads = qkv.view(len(qkv), shape.heads + 2 * shape.kv_heads, shape.head)
        turned = heads[:, : shape.heads + shape.kv_heads]
        cos, sin = self._weights.cos[positions][:, None], self._weights.sin[positions][:, None]
        low, high = turned.float().chunk(2, -1)
        turned.copy_(torch.cat((low * cos - high * sin, high * cos + low * sin), -1))
        page, at = positions // cache.page_tokens, positions % cache.page_tokens
        pages = cache.tables[work.slots.long(), page].long()
        cache.keys[layer][pages, :, at] = heads[:, shape.heads : -shape.kv_heads]
        cache.values[layer][pages, :, at] = heads[:, -shape.kv_heads :]

    def attend(self, qkv: Tensor, work: Laid, layer: int) -> Tensor:
        shape, size = self._shape, work.size
        out = qkv.new_zeros((len(qkv), shape.heads * shape.head))
        queries = qkv.view(len(qkv), -1, shape.head)[:, : shape.heads]
        positions, slots = work.positions.tolist(), work.slots.tolist()
        spans = [(row, slots[row], positions[row], 1) for row in range(size.singles)]
        for first, slot, start, count in spans + work.tiles.tolist():
            if count:
                keys, values = (self._read(kept[layer], slot, start + count) for kept in self._kept)
                seen = torch.arange(start + count, device=out.device)
                mask = seen[None] <= torch.arange(start, start + count, device=out.device)[:, None]
                rows = queries[first : first + count].transpose(0, 1)[None]
                mixed = F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask, enable_gqa=True)
                out[first : first + count] = mixed[0].transpose(0, 1).reshape(count, -1)
        return out

    @property
    def _kept(self) -> tuple[Tensor, Tensor]:
        return self._cache.keys, self._cache.values

    def _read(self, kept: Tensor, slot: int, length: int) -> Tensor:
        """Returns a slot's first `length` tokens, as [1, heads, tokens, values]."""
        pages = self._cache.tables[slot, : -(-length // self._cache.page_tokens)].long()
        heads, values = kept.shape[1], kept.shape[3]
        return kept[pages].transpose(0, 1).reshape(heads, -1, values)[None, :, :length]

    def draw(
        self, logits: Tensor, temperature: Tensor, top_p: Tensor, top_k: Tensor, min_p: Tensor, chance: Tensor
    ) -> Tensor:
        """Returns a token for each row: of the `top_k` heaviest, the fewest that carry `top_p` of their mass, and of
        these the one where the mass, in order of ids, passes `chance`. -1: the row has no finite logits."""
        logits = logits.float()
        best, first = logits.max(-1)
        scores = (logits - best[:, None]) / temperature.clamp(min=1e-5)[:, None]
        weights = torch.where(scores.exp() >= min_p[:, None], scores.exp(), 0.0).double()
        order = weights.sort(-1, descending=True).values
        ranks = torch.arange(logits.shape[-1], device=logits.device)[None]
        count = torch.where(top_k > 0, top_k, logits.shape[-1]).long()[:, None]
        order = torch.where(ranks < count, order, 0.0)
        mass = order.cumsum(-1)
        before = mass - order
        kept = (before < top_p[:, None] * mass[:, -1:]) & (ranks < count) & (order > 0)
        lightest = torch.where(kept, order, torch.inf).min(-1).values
        weights = torch.where(weights >= lightest[:, None], weights, 0.0)
        reached = weights.cumsum(-1)
        passed = (reached > chance[:, None] * reached[:, -1:]).int().argmax(-1)
        tokens = torch.where(temperature < 1e-5, first, passed)
        return torch.where(best.isfinite() & ~logits.isnan().any(-1), tokens, -1).int()

    def best_of(self, logits: Tensor) -> Tensor:
        """Returns each row's most likely token; -1: the row has no finite logits."""
        top, token = logits.max(-1)
        return torch.where(top.isfinite(), token, -1).int()
