"""Calls llguidance: a thin layer over its C interface, which is in the same library as llama.cpp.

Neither numpy nor llama.cpp is needed here: the helper process that tries grammars out (trial.py) imports only this
module.
"""

import ctypes as C
from collections.abc import Callable
from typing import Any, Final

from headgate.model.errors import StartupError

STEP_FUEL: Final = 20_000
"""Maximum lexer work per token. llguidance's own 200 000 let a 200-byte pattern hold a step for 35 ms; with this limit
it takes 3 ms, and no schema of a benchmark or test here needs a tenth of it."""
STEP_ITEMS: Final = 5_000
"""Maximum parser items per token; llguidance's own 50 000 take 20 ms."""
LEXER_STATES: Final = 20_000
"""Maximum lexer states; each takes about 1 KB of memory, as long as the grammar lives."""
NO_TOKEN: Final = 2**32 - 1

_ptr, _size, _flag, _u32, _i32 = C.c_void_p, C.c_size_t, C.c_bool, C.c_uint32, C.c_int32


class _Limits(C.Structure):
    _fields_ = (
        ("max_items_in_row", _size),
        ("initial_lexer_fuel", C.c_uint64),
        ("step_lexer_fuel", C.c_uint64),
        *[(name, _size) for name in ("step_max_items", "max_lexer_states", "max_grammar_size")],
        *[(name, _flag) for name in ("precompute_large_lexemes", "verbose_errors")],
    )


class _Init(C.Structure):
    _fields_ = (
        ("tokenizer", _ptr),
        *[(name, _u32) for name in ("log_buffer_level", "log_stderr_level")],
        *[(name, _flag) for name in ("ff_tokens_ok", "backtrack_ok")],
        ("limits", _Limits),
    )


class _TokenizerInit(C.Structure):
    _fields_ = (
        *[(name, _u32) for name in ("vocab_size", "tok_eos")],
        *[(name, _ptr) for name in ("token_lens", "token_bytes", "tokenizer_json")],
        ("tokenize_assumes_string", _flag),
        ("tokenize_fn", _ptr),
        ("use_approximate_greedy_tokenize_fn", _flag),
        *[(name, _ptr) for name in ("tokenize_user_data", "slices")],
    )


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "llg_constraint_init_set_defaults": (None, [_ptr, _ptr]),
    "llg_new_tokenizer": (_ptr, [_ptr, C.c_char_p, _size]),
    "llg_free_tokenizer": (None, [_ptr]),
    "llg_new_matcher": (_ptr, [_ptr, C.c_char_p, C.c_char_p]),
    "llg_clone_matcher": (_ptr, [_ptr]),
    "llg_free_matcher": (None, [_ptr]),
    "llg_matcher_get_error": (C.c_char_p, [_ptr]),
    "llg_matcher_compute_mask_into": (_i32, [_ptr, _ptr, _size]),
    "llg_matcher_consume_token": (_i32, [_ptr, _u32]),
    "llg_matcher_validate_tokens": (_i32, [_ptr, _ptr, _size]),
    "llg_matcher_is_accepting": (_flag, [_ptr]),
    "llg_matcher_is_stopped": (_flag, [_ptr]),
}


class Guidance:
    """llguidance for one vocabulary. ctypes releases the GIL around every call, so that compiling in one thread leaves
    the others running."""

    def __init__(self, c: Any, eos: int, lengths: bytes, pieces: bytes) -> None:
        """`lengths`: the length of each token in bytes, as 32-bit numbers. `pieces`: the bytes of all tokens, one after
        the other."""
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(c, name)
            function.restype, function.argtypes = result, arguments
        self.c = c
        self.n_vocab = len(lengths) // 4
        held = C.create_string_buffer(lengths, len(lengths)), C.create_string_buffer(pieces, len(pieces))
        init: Any = _TokenizerInit()
        init.vocab_size, init.tok_eos = self.n_vocab, eos
        init.token_lens, init.token_bytes = (C.addressof(buffer) for buffer in held)
        # Only needed to propose tokens, which Headgate never asks for.
        init.use_approximate_greedy_tokenize_fn = True
        error = C.create_string_buffer(256)
        handle: int | None = c.llg_new_tokenizer(C.byref(init), error, len(error))
        if not handle:
            raise StartupError(f"llguidance refuses this vocabulary: {error.value.decode('utf-8', 'replace')}")
        self._handle: int | None = handle
        self._init: Any = _Init()
        c.llg_constraint_init_set_defaults(C.byref(self._init), handle)
        limits = self._init.limits
        if (limits.max_items_in_row, limits.max_grammar_size) != (2000, 500_000):
            raise StartupError("this llguidance build is not the expected one: reinstall xllamacpp")
        limits.step_lexer_fuel, limits.step_max_items = STEP_FUEL, STEP_ITEMS
        limits.max_lexer_states = LEXER_STATES
        self._init.log_stderr_level = 0

    def new(self, grammar: bytes) -> int:
        """Compiles a grammar; the handle may hold an error instead. Compiling may take any time and memory: see
        trial.py."""
        handle: int = self.c.llg_new_matcher(C.byref(self._init), b"lark", grammar)
        return handle

    def free(self, handle: int) -> None:
        self.c.llg_free_matcher(handle)

    def matcher(self, grammar: bytes, new: Callable[[bytes], int] | None = None) -> tuple[int, str]:
        """Returns a compiled grammar and "", or 0 and the error. `new`: compiles instead of this thread; None: this
        thread compiles."""
        handle = (new or self.new)(grammar)
        error = self.error(handle)
        if error:
            self.free(handle)
            return 0, error
        return handle, ""

    def error(self, handle: int) -> str:
        found: bytes | None = self.c.llg_matcher_get_error(handle)
        if not found:
            return ""
        reason = found.decode("utf-8", "replace").split("failed to compile JSON schema: ")[-1]
        return " ".join(reason.split())[:300]

    def close(self) -> None:
        if self._handle:
            self.c.llg_free_tokenizer(self._handle)
            self._handle = None
