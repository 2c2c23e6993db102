"""Lays a step's rows out in the one block of numbers that a device gets for it.

First come the rows of one token each, a page-table lookup and a dot product away from their logits; then the chunks of
prompts, cut into tiles that one group of threads computes attention for. Rows and tiles that only fill a fixed size up
belong to a slot that no sequence has.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from headgate.model.step import Row


@dataclass(frozen=True, slots=True)
class Size:
    """How much a step can hold."""

    singles: int
    """Rows of one token."""
    chunked: int = 0
    """Tokens of all other rows."""
    tiles: int = 0
    chunks: int = 0
    """How many of those other rows may draw a token."""

    @property
    def tokens(self) -> int:
        return self.singles + self.chunked

    @property
    def drawn(self) -> int:
        return self.singles + self.chunks

    @property
    def column(self) -> int:
        """Numbers between the beginnings of columns: a kernel is compiled anew for one that begins elsewhere than at 16
        bytes, in the middle of a stream's answer."""
        return -(-self.tokens // 4) * 4

    @property
    def tiles_at(self) -> int:
        return 3 * self.column + -(-self.chunks // 4) * 4

    @property
    def numbers(self) -> int:
        return self.tiles_at + 4 * self.tiles


@dataclass(frozen=True, slots=True)
class Laid:
    """A step on the device: views into one tensor."""

    size: Size
    ids: Tensor
    positions: Tensor
    slots: Tensor
    ends: Tensor
    """The rows of the chunks that draw: the last token of each."""
    tiles: Tensor
    """For each tile: its first row, its slot, its first position, its tokens."""


def work_in(numbers: Tensor, size: Size) -> Laid:
    n, column, at = size.tokens, size.column, 3 * size.column
    return Laid(
        size,
        numbers[:n],
        numbers[column : column + n],
        numbers[2 * column : 2 * column + n],
        numbers[at : at + size.chunks],
        numbers[size.tiles_at : size.numbers].view(size.tiles, 4),
    )


def tiles_of(rows: Items[Row], tile: int) -> int:
    return sum([-(-row.count // tile) for row in rows])


def lay_out(into: NDArray[Any], size: Size, singles: Items[Row], chunks: Items[Row], tile: int, nowhere: int) -> None:
    """Writes rows into `into`. `nowhere`: the slot of what only fills up."""
    n = size.column
    into[: size.numbers] = 0
    into[2 * n : 3 * n] = nowhere
    count = len(singles)
    into[:count] = [row.sequence.tokens[row.start] for row in singles]
    into[n : n + count] = [row.start for row in singles]
    into[2 * n : 2 * n + count] = [row.slot for row in singles]
    at, end, here = size.singles, 3 * n, size.tiles_at
    for row in chunks:
        start, more = row.start, row.count
        into[at : at + more] = row.sequence.tokens[start : start + more]
        into[n + at : n + at + more] = range(start, start + more)
        into[2 * n + at : 2 * n + at + more] = row.slot
        for begun in range(0, more, tile):
            into[here : here + 4] = (at + begun, row.slot, start + begun, min(tile, more - begun))
            here += 4
        at += more
        if row.samples:
            into[end] = at - 1
            end += 1


def on_device(numbers: int, device: torch.device) -> Tensor:
    return torch.zeros(numbers, dtype=torch.int32, device=device)
