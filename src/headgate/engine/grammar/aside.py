"""Runs native code for grammars beside the streams, at a low priority and without Python's lock.

A thread that holds Python's lock must never have a low priority: while threads that compute tokens keep it from every
core, the event loop and the engine wait for it too. So this thread does hardly anything but call llguidance, which
ctypes does without the lock; threads of normal priority do all other work for a grammar.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue

from headgate.engine.grammar.llguidance import Guidance
from headgate.engine.grammar.trial import lower_priority


class GrammarThread:
    """Compiles grammars for one thread, and frees those that any thread drops."""

    def __init__(self, guidance: Guidance) -> None:
        self._guidance = guidance
        self._todo: SimpleQueue[bytes | int | None] = SimpleQueue()
        self._made: SimpleQueue[int] = SimpleQueue()
        self._closed = False
        self.thread = threading.Thread(target=self._main, name="grammars", daemon=True)
        self.thread.start()

    def new(self, grammar: bytes) -> int:
        """Compiles a grammar, as `Guidance.new` does."""
        self._todo.put(grammar)
        return self._made.get()

    def free(self, handle: int) -> None:
        """Frees a compiled grammar later, on the thread; a grammar of 40 MB takes 12 ms."""
        if self._closed:
            self._guidance.free(handle)
        else:
            self._todo.put(handle)

    def close(self) -> None:
        """Ends the thread. Nothing may be compiled afterwards."""
        self._closed = True
        self._todo.put(None)

    def _main(self) -> None:
        lower_priority(threading.get_native_id())
        new: Callable[[bytes], int] = self._guidance.new
        free: Callable[[int], None] = self._guidance.free
        while (what := self._todo.get()) is not None:
            if isinstance(what, int):
                free(what)
            else:
                self._made.put(new(what))
