"""Restricts the next token, so that the output follows a grammar.

llguidance (compiled into the same library as llama.cpp) does the work. llama.cpp's own GBNF engine could too, but
masking the vocabulary takes it 20 ms and more, llguidance well under 1 ms and bounded by fuel; and GBNF throws C++
exceptions, which end the process when they reach ctypes, where llguidance returns an error. Grammars are written in
llguidance's dialect of Lark, which can embed a JSON schema.
"""

import json
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from time import thread_time
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from headgate.engine.grammar.aside import GrammarThread
from headgate.engine.grammar.llguidance import NO_TOKEN, Guidance
from headgate.engine.runner.tokenizer import Tokenizer
from headgate.model.errors import InvalidRequest

MAX_SCHEMA_BYTES = 65_536
MAX_SCHEMA_DEPTH = 32
MOST_GRAMMAR_BYTES = 2 * MAX_SCHEMA_BYTES
TOKEN_S = 0.002
"""Maximum CPU seconds per token for following a grammar, in the long run; the usual is a tenth of that."""
MOST_SPENT_S = 0.01
"""Maximum CPU seconds spent at once, after tokens that took less."""
_KEPT = 32
"""Compiled grammars kept for reuse: clients tend to send the same schema again and again."""

# One space after ',' and ':' and none elsewhere: where whitespace is free, small models get lost in it and write
# newlines until they run out of tokens. oneOf is read as anyOf, as most engines do.
_STYLE = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,
}


def response_grammar(response_format: Mapping[str, Any] | None) -> str | None:
    """Returns the grammar of OpenAI's `response_format`; None: any text."""
    kind = "text" if response_format is None else response_format.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return json_grammar({"type": "object"})
    if kind != "json_schema":
        raise _invalid(f"type must be text, json_object or json_schema, not {kind!r}")
    wrapped = (response_format or {}).get("json_schema")
    schema = wrapped.get("schema") if isinstance(wrapped, Mapping) else None
    if not isinstance(schema, Mapping):
        raise _invalid("json_schema.schema must be an object")
    check_depth(schema, MAX_SCHEMA_DEPTH)
    return json_grammar(schema)


def json_grammar(schema: Mapping[str, Any], param: str = "response_format") -> str:
    return f"%llguidance {{}}\nstart: {json_rule(schema, param)}"


def json_rule(schema: Mapping[str, Any], param: str = "response_format") -> str:
    """Returns the part of a grammar that is JSON of this schema. `param`: the field that an error names."""
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


class Compiled:
    """A compiled grammar, of which each sequence gets a copy; freed with its last reference."""

    def __init__(self, handle: int, free: Callable[[int], None]) -> None:
        self.handle = handle
        weakref.finalize(self, free, handle).atexit = False


class Grammars:
    """The compiled grammars of one vocabulary. Any thread may look one up or compile one."""

    def __init__(self, tokenizer: Tokenizer, c: Any) -> None:
        pieces = [_spelled(tokenizer, token) for token in range(tokenizer.n_vocab)]
        self.vocabulary = Words(
            min(tokenizer.eog, default=NO_TOKEN),
            np.array([len(piece) for piece in pieces], np.uint32).tobytes(),
            b"".join(pieces),
        )
        self.c = c
        self.tokenizer = tokenizer
        self.guidance = Guidance(c, *self.vocabulary)
        self._compiled: OrderedDict[str, Compiled] = OrderedDict()
        self._alive: WeakValueDictionary[str, Compiled] = WeakValueDictionary()
        """All compiled grammars still in use, including those held by a sequence on its way to the engine."""
        self._lock = threading.Lock()

    def known(self, grammar: str) -> Compiled | None:
        with self._lock:
            compiled = self._alive.get(grammar)
            if compiled is not None:
                self._compiled[grammar] = compiled
                self._compiled.move_to_end(grammar)
                if len(self._compiled) > _KEPT:
                    self._compiled.popitem(last=False)
            return compiled

    def make(self, grammar: str, aside: GrammarThread | None = None) -> Compiled | str:
        """Compiles a grammar now; returns the reason if that fails. A client's grammar needs a trial before. `aside`:
        the thread that compiles and frees it; None: the calling threads do."""
        data = grammar.encode("utf-8", "replace")
        if len(data) > MOST_GRAMMAR_BYTES or b"\0" in data:
            return f"the grammar has {len(data)} bytes, at most {MOST_GRAMMAR_BYTES} are taken, and none may be NUL"
        handle, error = self.guidance.matcher(data, None if aside is None else aside.new)
        if error:
            return error
        compiled = Compiled(handle, self.guidance.free if aside is None else aside.free)
        with self._lock:
            self._alive[grammar] = compiled
        return self.known(grammar) or compiled

    def compile(self, grammar: str) -> "Grammar":
        """Returns a new state in the grammar, for one sequence. Raises InvalidRequest if the text is no grammar, or too
        costly a one."""
        compiled = self.known(grammar) or self.make(grammar)
        if isinstance(compiled, str):
            raise _invalid(compiled)
        return Grammar(self, self.c.llg_clone_matcher(compiled.handle))

    def close(self) -> None:
        self._compiled.clear()
        self.guidance.close()


class Words(NamedTuple):
    """A vocabulary as llguidance takes it."""

    eos: int
    lengths: bytes
    pieces: bytes


def _spelled(tokenizer: Tokenizer, token: int) -> bytes:
    # \xff is no UTF-8: a control token never matches a grammar's text.
    return tokenizer.piece(token) or b"\xff" + tokenizer.spelling(token)


class Grammar:
    """One sequence's position in its grammar."""

    def __init__(self, grammars: Grammars, handle: int) -> None:
        self._c = grammars.c
        self._eog = grammars.tokenizer.eog
        self._eog_ids = np.array(sorted(self._eog), np.int64)
        self._n_vocab = grammars.tokenizer.n_vocab
        self._handle: int | None = handle
        self._ended = False
        self._one = np.zeros(1, np.uint32)
        self._left_s = MOST_SPENT_S
        self.stuck = False
        """The grammar can't be followed any further, or costs too much to follow: the answer ends here, unfinished."""

    def allows(self, token: int) -> bool:
        if token in self._eog or self._stopped:
            return token in self._eog and (self._stopped or self._c.llg_matcher_is_accepting(self._handle))
        self._one[0] = token
        began = thread_time()
        valid: int = self._c.llg_matcher_validate_tokens(self._handle, self._one.ctypes.data, 1)
        self._left_s -= thread_time() - began
        return valid == 1

    def mask(self) -> NDArray[np.bool_]:
        """Returns True for every token that may come next; an end token only where the grammar is complete."""
        words = np.zeros((self._n_vocab + 31) // 32, np.uint32)
        ends = self._stopped
        if not ends:
            began = thread_time()
            self._c.llg_matcher_compute_mask_into(self._handle, words.ctypes.data, words.nbytes)
            self._left_s -= thread_time() - began
            ends = self._c.llg_matcher_is_accepting(self._handle)
        allowed = np.unpackbits(words.view(np.uint8), bitorder="little")[: self._n_vocab].view(np.bool_)
        allowed[self._eog_ids] = False  # an end token that the grammar names as part of its text may not be drawn
        if not ends and not allowed.any():
            ends = self.stuck = True
        allowed[self._eog_ids] = ends
        return allowed

    def accept(self, token: int) -> None:
        if token in self._eog:
            self._ended = True
        elif not self._ended:
            began = thread_time()
            self._c.llg_matcher_consume_token(self._handle, token)
            self._left_s = min(MOST_SPENT_S, self._left_s + TOKEN_S - (thread_time() - began))
            self.stuck = self.stuck or self._left_s < 0

    def close(self) -> None:
        if self._handle:
            self._c.llg_free_matcher(self._handle)
            self._handle = None

    @property
    def _stopped(self) -> bool:
        """True if only an end token may follow. An error counts too, as of fuel used up: the sequence ends, and no
        other notices."""
        if self._ended or self.stuck:
            return True
        if not self._c.llg_matcher_is_stopped(self._handle):
            return False
        self.stuck = bool(self._c.llg_matcher_get_error(self._handle))
        return True
