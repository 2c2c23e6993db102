"""Holds the KV memory on the device, in pages, and the table that says which pages a slot has."""

import torch
from torch import Tensor

from headgate.engine.torch.pages import NOWHERE, PageLedger
from headgate.engine.torch.shape import ModelShape

_ENTRIES = 1 << 18
"""Table entries that may be on their way to the device at once: those of some steps."""


class Cache:
    def __init__(self, shape: ModelShape, ledger: PageLedger, device: torch.device, dtype: torch.dtype) -> None:
        page, slots = ledger.block_tokens, ledger.slots
        size = (shape.layers, ledger.pages, shape.kv_heads, page, shape.head)
        self.page_tokens = page
        self.keys: Tensor = torch.zeros(size, dtype=dtype, device=device)
        """By layer, page, head and token in the page."""
        self.values: Tensor = torch.zeros(size, dtype=dtype, device=device)
        self.width = ledger.slot_tokens // page + 2
        self.tables: Tensor = torch.full((slots + 1, self.width), NOWHERE, dtype=torch.int32, device=device)
        """The pages of each slot; the last row is that of no slot."""
        self.nowhere = slots
        self._ledger = ledger
        self._device = device
        # Copies from pinned memory don't wait for the device. Used as a ring: a step uses a small part of it.
        self._staged = torch.zeros(2 * _ENTRIES, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._at = 0

    def update(self) -> None:
        """Tells the device which pages have joined tables. In order with the steps before and after."""
        where: list[int] = []
        pages: list[int] = []
        for slot, first in self._ledger.take_changes().items():
            row = self._ledger.table(slot)
            where += range(slot * self.width + first, slot * self.width + len(row))
            pages += row[first:]
        for begin in range(0, len(where), _ENTRIES // 4):
            self._send(where[begin : begin + _ENTRIES // 4], pages[begin : begin + _ENTRIES // 4])

    def _send(self, where: list[int], pages: list[int]) -> None:
        count = len(where)
        if self._at + 2 * count > len(self._staged):
            self._at = 0
        staged = self._staged[self._at : self._at + 2 * count].view(2, count)
        self._at += 2 * count
        staged.numpy()[:] = (where, pages)
        sent = staged.to(self._device, non_blocking=True)
        self.tables.view(-1).index_copy_(0, sent[0], sent[1].to(torch.int32))
