"""Converts a GGUF to another quantization: the same weights, in a form that llama.cpp computes faster.

Only tensors in Q4_1 are converted: on a CPU llama.cpp has faster kernels for Q4_0 and Q8_0. Q8_0 keeps Q4_1's weights
to within 1/254 of a block's largest weight; Q4_0 loses more (docs/decisions/0017).
"""

import ctypes as C
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from headgate.engine.runner.llama import Q4_0, Q4_1, GgufParams, check_gguf, library
from headgate.model.errors import StartupError

FILE_TYPE = b"general.file_type"


class _Gguf:
    """The head of a GGUF file as llama.cpp reads it. Freed by `close`."""

    def __init__(self, path: Path) -> None:
        check_gguf(path)
        self.c = library().c
        self.handle: int | None = self.c.gguf_init_from_file(os.fsencode(path), GgufParams(True, None))
        if not self.handle:
            raise StartupError(f"{path} can't be read ({library().why()}); it may be truncated: fetch it again")
        self.tensors: int = self.c.gguf_get_n_tensors(self.handle)

    def name(self, tensor: int) -> str:
        return str(self.c.gguf_get_tensor_name(self.handle, tensor).decode("utf-8", "replace"))

    def type(self, tensor: int) -> int:
        return int(self.c.gguf_get_tensor_type(self.handle, tensor))

    def size(self, tensor: int) -> int:
        return int(self.c.gguf_get_tensor_size(self.handle, tensor))

    def offset(self, tensor: int) -> int:
        """Bytes from the beginning of the data of all tensors."""
        return int(self.c.gguf_get_tensor_offset(self.handle, tensor))

    def shape(self, tensor: int) -> tuple[int, int]:
        """Returns the weights per row, and the rows."""
        row, *others = self.c.gguf_get_tensor_ne(self.handle, tensor)[:4]
        return int(row), int(np.prod(others))

    def head(self) -> bytes:
        """Returns everything before the data, as a file begins with it."""
        room = C.create_string_buffer(self.c.gguf_get_meta_size(self.handle))
        self.c.gguf_get_meta_data(self.handle, room)
        return room.raw

    def close(self) -> None:
        self.c.gguf_free(self.handle)


def requantize(source: Path, target: IO[bytes], wanted: Callable[[str], int], file_type: int) -> None:
    """Writes `source` to `target`, each Q4_1 tensor in the type that `wanted` gives for its name. `file_type`: the main
    type that the new file declares. Raises OSError when there is no room."""
    old, new = _Gguf(source), _Gguf(source)
    try:
        for tensor in range(old.tensors):
            if old.type(tensor) == Q4_1:
                new.c.gguf_set_tensor_type(new.handle, old.name(tensor).encode(), wanted(old.name(tensor)))
        new.c.gguf_set_val_u32(new.handle, FILE_TYPE, file_type)
        target.write(new.head())
        start = target.tell()
        data = np.memmap(source, np.uint8, mode="r", offset=0)
        base = old.c.gguf_get_data_offset(old.handle)
        for tensor in range(old.tensors):
            at = base + old.offset(tensor)
            target.write(bytes(start + new.offset(tensor) - target.tell()))  # tensors are aligned
            told = np.array(data[at : at + old.size(tensor)])
            if old.type(tensor) != new.type(tensor):
                told = _converted(old, tensor, told, new.type(tensor), new.size(tensor))
            target.write(told.tobytes())
        target.write(bytes(-target.tell() % old.c.gguf_get_alignment(old.handle)))
    finally:
        old.close()
        new.close()


def _converted(old: _Gguf, tensor: int, told: NDArray[np.uint8], wanted: int, size: int) -> NDArray[np.uint8]:
    row, rows = old.shape(tensor)
    weights, made = np.empty(row * rows, np.float32), np.empty(size, np.uint8)
    old.c.dequantize_row_q4_1(told.ctypes.data, weights.ctypes.data, row * rows)
    # With an importance given (here: equal for all weights), the scale of least error is searched for each block of
    # Q4_0.
    alike = np.ones(row, np.float32)
    importance = alike.ctypes.data if wanted == Q4_0 else None
    written = old.c.ggml_quantize_chunk(wanted, weights.ctypes.data, made.ctypes.data, 0, rows, row, importance)
    if written != size:
        raise StartupError(f"{old.name(tensor)}: llama.cpp wrote {written} bytes for {size}; install the pinned build")
    return made
