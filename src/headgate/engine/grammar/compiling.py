"""Compiles the grammars that clients send, on threads apart from the engine's and the event loop's.

A helper process first tries each grammar out (trial.py), which bounds its cost. One grammar is compiled at a time, at a
low priority (aside.py); clients take turns; a grammar that was refused once is refused again without a trial.
"""

import logging
import os
import subprocess
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from headgate.engine.grammar.aside import GrammarThread
from headgate.engine.grammar.grammar import MOST_GRAMMAR_BYTES, Compiled, Grammars
from headgate.engine.grammar.trial import UNDECIDED, WALL_S, receive, send
from headgate.model.errors import EngineFailed, InvalidRequest, QueueFull, ServeError

log = logging.getLogger(__name__)

MOST_WAITING: Final = 32
"""Maximum grammars waiting to be compiled, over all clients."""
MOST_OF_ONE: Final = 4
"""Maximum grammars of one client waiting to be compiled."""
MOST_SHARING: Final = 64
"""Maximum requests waiting for the same grammar."""
_KEPT_REFUSALS: Final = 1024

Done = Callable[[Compiled | ServeError], None]


@dataclass(slots=True)
class _Job:
    grammar: str
    client: str
    waiting: list[tuple[str, Done]] = field(default_factory=list)
    """For each waiting request: the field that gave the grammar, and the callback for the result."""


class Compiling:
    """Queues and compiles grammars; used on the event loop, with two threads and a process of its own. The thread that
    handles grammars has normal priority, since it holds Python's lock; it computes hardly anything."""

    def __init__(self, grammars: Grammars, library: Path, to_loop: Callable[[Callable[[], None]], object]) -> None:
        """`to_loop`: calls a function on the event loop, from any thread."""
        self._grammars = grammars
        self._library = library
        self._to_loop = to_loop
        self._jobs: dict[str, _Job] = {}
        self._turns: OrderedDict[str, deque[_Job]] = OrderedDict()
        """The grammars waiting per client; the client at the front is next."""
        self._busy = False
        self._refusals: OrderedDict[bytes, str] = OrderedDict()
        self._closing = False
        self._work: SimpleQueue[_Job | None] = SimpleQueue()
        self._helper: subprocess.Popen[bytes] | None = None
        self.aside = GrammarThread(grammars.guidance)
        self._thread = threading.Thread(target=self._main, name="compile", daemon=True)
        self._thread.start()

    # -- on the event loop ------------------------------------------------------------------------------

    def compile(self, grammar: str, param: str, client: str, done: Done) -> None:
        """Calls `done` with the grammar or an error; at once if the result is known already."""
        known = self._grammars.known(grammar)
        if known is not None:
            done(known)
        elif len(grammar) > MOST_GRAMMAR_BYTES:
            said = f"{param}: its grammar has {len(grammar)} characters, at most {MOST_GRAMMAR_BYTES} are taken"
            done(InvalidRequest(said, param=param))
        elif (reason := self._refusals.get(_key(grammar))) is not None:
            self._refusals.move_to_end(_key(grammar))
            done(InvalidRequest(f"{param}: {reason}", param=param))
        elif (job := self._jobs.get(grammar)) is not None and len(job.waiting) < MOST_SHARING:
            job.waiting.append((param, done))
        elif job is not None or len(self._jobs) > MOST_WAITING or len(self._turns.get(client, ())) >= MOST_OF_ONE:
            done(QueueFull(f"{len(self._jobs)} grammars are being compiled already; send it again later"))
        else:
            job = self._jobs[grammar] = _Job(grammar, client, [(param, done)])
            self._turns.setdefault(client, deque()).append(job)
            self._next()

    def close(self) -> None:
        """Ends the threads and the process; a trial that is running is abandoned."""
        self._closing = True
        self._work.put(None)
        if (helper := self._helper) is not None:
            helper.kill()
        self._thread.join(WALL_S)
        self.aside.close()

    def _next(self) -> None:
        if self._busy or not self._turns:
            return
        client, jobs = self._turns.popitem(last=False)
        job = jobs.popleft()
        if jobs:
            self._turns[client] = jobs  # behind all others
        self._busy = True
        self._work.put(job)

    def _done(self, job: _Job, found: Compiled | str | ServeError) -> None:
        self._busy = False
        del self._jobs[job.grammar]
        if isinstance(found, str):
            self._refusals[_key(job.grammar)] = found
            if len(self._refusals) > _KEPT_REFUSALS:
                self._refusals.popitem(last=False)
        self._next()
        for param, done in job.waiting:
            done(InvalidRequest(f"{param}: {found}", param=param) if isinstance(found, str) else found)

    # -- on its thread ----------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            self._start()  # now, not with the first grammar: starting takes half a second
        except (OSError, EOFError):
            if not self._closing:  # an engine that is ended while it starts ends the helper, too
                log.exception("the process that tries grammars out can't be started")
        while (job := self._work.get()) is not None:
            self._report(job, self._judged(job.grammar))
        self._end()

    def _report(self, job: _Job, found: Compiled | str | ServeError) -> None:
        self._to_loop(lambda: self._done(job, found))

    def _judged(self, grammar: str) -> Compiled | str | ServeError:
        try:
            helper = self._helper or self._start()
            assert helper.stdin is not None
            assert helper.stdout is not None
            send(helper.stdin, grammar.encode("utf-8", "replace"))
            verdict = receive(helper.stdout).decode("utf-8", "replace")
        except (OSError, EOFError):
            if not self._closing:
                log.exception("the process that tries grammars out has failed")
            self._end()
            return EngineFailed("grammars can't be compiled now; send the request again")
        if verdict.startswith(UNDECIDED):
            return QueueFull(f"the grammar: {verdict[len(UNDECIDED) :]}; send it again later")
        return verdict or self._grammars.make(grammar, self.aside)

    def _start(self) -> subprocess.Popen[bytes]:
        package = str(Path(__file__).parent.parent.parent)
        path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
        helper = self._helper = subprocess.Popen(
            [sys.executable, "-m", "headgate.engine.grammar.trial"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert helper.stdin is not None
        assert helper.stdout is not None
        words = self._grammars.vocabulary
        for part in (os.fsencode(self._library), str(words.eos).encode(), words.lengths, words.pieces):
            send(helper.stdin, part)
        receive(helper.stdout)
        return helper

    def _end(self) -> None:
        helper, self._helper = self._helper, None
        if helper is None:
            return
        for pipe in (helper.stdin, helper.stdout):
            assert pipe is not None
            with suppress(OSError):  # the helper has ended before it read all
                pipe.close()
        helper.kill()
        helper.wait()


def _key(grammar: str) -> bytes:
    return blake2b(grammar.encode("utf-8", "replace"), digest_size=16).digest()
