"""Which tokens may come next, so that the output follows a grammar?

llguidance (compiled into the same library as llama.cpp) answers. llama.cpp's own GBNF engine can too,
but: masking the vocabulary takes it 20 ms and more, llguidance well under one, and bounded by fuel;
and it throws C++ exceptions, which end the process when they reach ctypes, where llguidance returns
an error. Grammars are written in llguidance's dialect of Lark, which can embed a JSON schema.
"""

import ctypes as C
import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headgate.engine.llama import flag, i32, ptr, size, u32
from headgate.engine.tokenizer import Tokenizer
from headgate.model.errors import InvalidRequest, StartupError

MAX_SCHEMA_BYTES = 65_536
MAX_SCHEMA_DEPTH = 32
_KEPT = 32
"""Compiled grammars kept for reuse: clients tend to send the same schema again and again."""

_NO_TOKEN = 2**32 - 1

# One space after ',' and ':' and none elsewhere: where whitespace is free, small models get lost in it
# and write newlines until they run out of tokens. oneOf is read as anyOf, as most engines do.
_STYLE = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,
}


class _Limits(C.Structure):
    _fields_ = (
        ("max_items_in_row", size),
        ("initial_lexer_fuel", C.c_uint64),
        ("step_lexer_fuel", C.c_uint64),
        *[(name, size) for name in ("step_max_items", "max_lexer_states", "max_grammar_size")],
        *[(name, flag) for name in ("precompute_large_lexemes", "verbose_errors")],
    )


class _Init(C.Structure):
    _fields_ = (
        ("tokenizer", ptr),
        *[(name, u32) for name in ("log_buffer_level", "log_stderr_level")],
        *[(name, flag) for name in ("ff_tokens_ok", "backtrack_ok")],
        ("limits", _Limits),
    )


class _TokenizerInit(C.Structure):
    _fields_ = (
        *[(name, u32) for name in ("vocab_size", "tok_eos")],
        *[(name, ptr) for name in ("token_lens", "token_bytes", "tokenizer_json")],
        ("tokenize_assumes_string", flag),
        ("tokenize_fn", ptr),
        ("use_approximate_greedy_tokenize_fn", flag),
        *[(name, ptr) for name in ("tokenize_user_data", "slices")],
    )


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "llg_constraint_init_set_defaults": (None, [ptr, ptr]),
    "llg_new_tokenizer": (ptr, [ptr, C.c_char_p, size]),
    "llg_free_tokenizer": (None, [ptr]),
    "llg_new_matcher": (ptr, [ptr, C.c_char_p, C.c_char_p]),
    "llg_clone_matcher": (ptr, [ptr]),
    "llg_free_matcher": (None, [ptr]),
    "llg_matcher_get_error": (C.c_char_p, [ptr]),
    "llg_matcher_compute_mask_into": (i32, [ptr, ptr, size]),
    "llg_matcher_consume_token": (i32, [ptr, u32]),
    "llg_matcher_validate_tokens": (i32, [ptr, ptr, size]),
    "llg_matcher_is_accepting": (flag, [ptr]),
    "llg_matcher_is_stopped": (flag, [ptr]),
}


def response_grammar(response_format: Mapping[str, Any] | None) -> str | None:
    """The grammar of OpenAI's `response_format`; None where any text will do."""
    kind = "text" if response_format is None else response_format.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return _json_grammar({"type": "object"})
    if kind != "json_schema":
        raise _invalid(f"type must be text, json_object or json_schema, not {kind!r}")
    wrapped = (response_format or {}).get("json_schema")
    schema = wrapped.get("schema") if isinstance(wrapped, Mapping) else None
    if not isinstance(schema, Mapping):
        raise _invalid("json_schema.schema must be an object")
    check_depth(schema, MAX_SCHEMA_DEPTH)
    return _json_grammar(schema)


def _json_grammar(schema: Mapping[str, Any]) -> str:
    return f"%llguidance {{}}\nstart: {json_rule(schema)}"


def json_rule(schema: Mapping[str, Any], param: str = "response_format") -> str:
    """The part of a grammar that is JSON of this schema. `param` is what a complaint is about."""
    # ASCII only: a NUL in a name would end the C string early.
    text = json.dumps({**schema, "x-guidance": _STYLE})
    if len(text) > MAX_SCHEMA_BYTES:
        raise _invalid(f"the schema has {len(text)} bytes, at most {MAX_SCHEMA_BYTES} are taken", param)
    return f"%json {text}"


def check_depth(value: Any, left: int, param: str = "response_format") -> None:
    if left < 0:
        raise _invalid(f"the schema is nested more than {MAX_SCHEMA_DEPTH} deep", param)
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for part in parts:
        check_depth(part, left - 1, param)


def _invalid(reason: str, param: str = "response_format") -> InvalidRequest:
    return InvalidRequest(f"{param}: {reason}", param=param)


class Grammars:
    """Compiles grammars for one vocabulary."""

    def __init__(self, tokenizer: Tokenizer, c: Any) -> None:
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(c, name)
            function.restype, function.argtypes = result, arguments
        self.c = c
        self.tokenizer = tokenizer
        self._handle = self._new_tokenizer()
        self._init: Any = _Init()
        c.llg_constraint_init_set_defaults(C.byref(self._init), self._handle)
        if (self._init.limits.max_items_in_row, self._init.limits.max_grammar_size) != (2000, 500_000):
            raise StartupError("this llguidance build is not the expected one: reinstall xllamacpp")
        self._init.log_stderr_level = 0
        self._compiled: OrderedDict[str, int] = OrderedDict()

    def compile(self, grammar: str) -> "Grammar":
        """Raise InvalidRequest if it is no grammar, or one too costly."""
        known = self._compiled.pop(grammar, None)
        if known is None:
            data = grammar.encode("utf-8", "replace")
            param = "tools" if b"\ncall_0: " in data else "response_format"
            if len(data) > 2 * MAX_SCHEMA_BYTES or b"\0" in data:
                raise _invalid("the grammar is too long, or holds a NUL", param)
            known = self.c.llg_new_matcher(C.byref(self._init), b"lark", data)
            error = self.c.llg_matcher_get_error(known)
            if error:
                self.c.llg_free_matcher(known)
                reason = error.decode("utf-8", "replace").split("failed to compile JSON schema: ")[-1]
                raise _invalid(" ".join(reason.split())[:300], param)
        self._compiled[grammar] = known
        if len(self._compiled) > _KEPT:
            self.c.llg_free_matcher(self._compiled.popitem(last=False)[1])
        return Grammar(self, self.c.llg_clone_matcher(known))

    def close(self) -> None:
        while self._compiled:
            self.c.llg_free_matcher(self._compiled.popitem()[1])
        if self._handle:
            self.c.llg_free_tokenizer(self._handle)
            self._handle = 0

    def _new_tokenizer(self) -> int:
        pieces = [self._bytes(token) for token in range(self.tokenizer.n_vocab)]
        lengths = np.array([len(piece) for piece in pieces], np.uint32)
        data = np.frombuffer(b"".join(pieces), np.uint8)
        init: Any = _TokenizerInit()
        init.vocab_size, init.tok_eos = len(pieces), min(self.tokenizer.eog, default=_NO_TOKEN)
        init.token_lens, init.token_bytes = lengths.ctypes.data, data.ctypes.data
        # Only needed to propose tokens, which we never ask for.
        init.use_approximate_greedy_tokenize_fn = True
        error = C.create_string_buffer(256)
        handle: int | None = self.c.llg_new_tokenizer(C.byref(init), error, len(error))
        if not handle:
            raise StartupError(f"llguidance refuses this vocabulary: {error.value.decode('utf-8', 'replace')}")
        return handle

    def _bytes(self, token: int) -> bytes:
        # \xff is no UTF-8: a control token never matches a grammar's text.
        return self.tokenizer.piece(token) or b"\xff" + self.tokenizer.spelling(token)


class Grammar:
    """How far one sequence has come in its grammar."""

    def __init__(self, grammars: Grammars, handle: int) -> None:
        self._c = grammars.c
        self._eog = grammars.tokenizer.eog
        self._eog_ids = np.array(sorted(self._eog), np.int64)
        self._n_vocab = grammars.tokenizer.n_vocab
        self._handle: int | None = handle
        self._ended = False
        self._one = np.zeros(1, np.uint32)

    def allows(self, token: int) -> bool:
        if token in self._eog or self._stopped:
            return token in self._eog and (self._stopped or self._c.llg_matcher_is_accepting(self._handle))
        self._one[0] = token
        valid: int = self._c.llg_matcher_validate_tokens(self._handle, self._one.ctypes.data, 1)
        return valid == 1

    def mask(self) -> NDArray[np.bool_]:
        """True for every token that may come next: the end only where the grammar is complete."""
        words = np.zeros((self._n_vocab + 31) // 32, np.uint32)
        if not self._stopped:
            self._c.llg_matcher_compute_mask_into(self._handle, words.ctypes.data, words.nbytes)
        allowed = np.unpackbits(words.view(np.uint8), bitorder="little")[: self._n_vocab].view(np.bool_)
        # Out of fuel, or stuck, nothing is allowed: then this one sequence ends, and no other notices.
        ends = not allowed.any() or self._c.llg_matcher_is_accepting(self._handle)
        allowed[self._eog_ids] = ends
        return allowed

    def accept(self, token: int) -> None:
        if token in self._eog:
            self._ended = True
        elif not self._ended:
            self._c.llg_matcher_consume_token(self._handle, token)

    def close(self) -> None:
        if self._handle:
            self._c.llg_free_matcher(self._handle)
            self._handle = None

    @property
    def _stopped(self) -> bool:
        """Only the end may follow. An error counts: the sequence ends, and no other notices."""
        return self._ended or self._c.llg_matcher_is_stopped(self._handle)
