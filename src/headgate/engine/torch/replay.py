"""Runs a step of a given size: on a GPU as a CUDA graph, recorded once and replayed with other numbers.

Three hundred small kernels take longer to launch one by one than to run. A graph is launched at once, and always runs
at the addresses that it was recorded with; so there is one for every size that a step is rounded up to.
"""

from bisect import bisect_left
from collections.abc import Sequence as Items
from typing import Any, Final

import torch
from numpy.typing import NDArray
from torch import Tensor

from headgate.engine.torch.llama import LlamaModel
from headgate.engine.torch.work import Size, lay_out, on_device, tiles_of, work_in
from headgate.model.step import Row

SINGLES: Final = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512)
BESIDE: Final = (0, 8, 32, 64, 128, 256, 512)
"""Streams that a step with chunks is rounded up to."""
CHUNKED: Final = (32, 64, 128, 192, 256, 384, 512)
"""Prompt tokens that a step is rounded up to. A larger one takes longer to compute than to launch, and is launched as
it is."""
CHUNKS: Final = 4
"""Chunks of one recorded step that may draw. A step with more is launched as it is."""
_RING: Final = 4
_LEAST_STAGED: Final = 1 << 16


class Replay:
    """A step of one size, with its numbers on the device."""

    def __init__(self, model: LlamaModel, size: Size) -> None:
        self.size = size
        self.numbers: Tensor = on_device(size.numbers, model.device)
        self.work = work_in(self.numbers, size)
        self.work.slots.fill_(model.cache.nowhere)
        self._model = model
        self._graph: Any = None
        self._logits: Tensor | None = None

    def record(self, pool: object) -> None:
        """Records the step as a graph. Its intermediate values share their memory with other graphs' of this pool."""
        self._model.logits(self.work)  # compiles the kernels, and chooses those of the matrix products
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            self._logits = self._model.logits(self.work)
        self._graph = graph

    def run(self) -> Tensor:
        """Returns the logits, on the device, where the next run overwrites them."""
        if self._graph is None:
            return self._model.logits(self.work)
        self._graph.replay()
        assert self._logits is not None
        return self._logits

    def advance(self, count: int, tokens: Tensor) -> None:
        """Makes the numbers those of the next step of the same rows: each goes on with the token it has drawn."""
        self.work.ids[:count] = tokens[:count]
        self.work.positions[:count] += 1


class Replays:
    """The steps of one model, by size."""

    def __init__(self, model: LlamaModel, slots: int, most_tokens: int) -> None:
        self._model = model
        self._singles = [*(size for size in SINGLES if size < slots), slots]
        self._beside = [*(size for size in BESIDE if size < slots), slots]
        self._recorded = model.device.type == "cuda"
        self._kept: dict[Size, Replay] = {}
        pinned = model.device.type == "cuda"
        most = max(_LEAST_STAGED, 8 * (most_tokens + slots))
        self._staged = [torch.zeros(most, dtype=torch.int32, pin_memory=pinned) for _ in range(_RING)]
        self._at = 0

    def record_all(self) -> int:
        """Records every size that a step is rounded up to; returns their number. The largest first: the others fit into
        its memory."""
        if not self._recorded:
            return 0
        pool = torch.cuda.graph_pool_handle()
        sizes = [self._chunked(beside, tokens) for beside in self._beside for tokens in CHUNKED]
        for size in sorted({*map(Size, self._singles), *sizes}, key=lambda size: -size.tokens):
            replay = self._kept[size] = Replay(self._model, size)
            replay.record(pool)
        return len(self._kept)

    def of(self, singles: Items[Row], chunks: Items[Row]) -> Replay:
        """Returns a step that holds these rows, with their numbers in it."""
        replay = self._sized(singles, chunks)
        staged = self._staged[self._at % _RING]
        self._at += 1
        count, tile = replay.size.numbers, self._model.operations.tile
        numbers: NDArray[Any] = staged.numpy()
        lay_out(numbers, replay.size, singles, chunks, tile, self._model.cache.nowhere)
        replay.numbers.copy_(staged[:count], non_blocking=True)
        return replay

    def _sized(self, singles: Items[Row], chunks: Items[Row]) -> Replay:
        if not chunks:
            size = Size(self._singles[bisect_left(self._singles, len(singles))])
            if size not in self._kept:
                self._kept[size] = Replay(self._model, size)
            return self._kept[size]
        tokens, drawing = sum([row.count for row in chunks]), sum([row.samples for row in chunks])
        tiles = tiles_of(chunks, self._model.operations.tile)
        if self._recorded and tokens <= CHUNKED[-1] and drawing <= CHUNKS:
            beside = self._beside[bisect_left(self._beside, len(singles))]
            size = self._chunked(beside, CHUNKED[bisect_left(CHUNKED, tokens)])
            if tiles <= size.tiles:
                return self._kept[size]
        return Replay(self._model, Size(len(singles), tokens, tiles, drawing))

    def _chunked(self, singles: int, tokens: int) -> Size:
        return Size(singles, tokens, -(-tokens // self._model.operations.tile) + 2 * CHUNKS, CHUNKS)
