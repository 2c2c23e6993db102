"""Tries a grammar out in a process of its own, so that a costly grammar delays no other client.

Compiling a grammar is native code that nothing in the same process can end: 1 200 patternProperties, 50 KB of schema,
keep llguidance busy for more than nine minutes. So a grammar is first compiled here, in a child that the kernel ends
when it has used its CPU time or memory, and its first tokens are walked through as a model would. Only a grammar that
passes is compiled again by the engine.

A message on the pipes is a length (4 bytes) and then that number of bytes. The engine first sends the library's path,
the id of the end token, the lengths of all tokens and their bytes; then grammars, and the process answers each with a
verdict.
"""

import ctypes as C
import os
import random
import resource
import select
import signal
import struct
import sys
import time
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import IO, Final

from headgate.engine.grammar.llguidance import Guidance

CPU_S: Final = 0.5
"""Maximum CPU seconds to compile a grammar and walk through it."""
WALL_S: Final = 10.0
NICE: Final = 10
"""Niceness: beside threads that compute tokens on every core, the process gets a tenth of a core; with 19 it would get
a hundredth."""
MEMORY: Final = 256 << 20
"""Maximum bytes that a grammar may take while it is compiled."""
WALKS, STEPS = 3, 24
STEP_S: Final = 0.005
"""CPU seconds above which a token counts as slow; SLOW_STEPS slow tokens refuse the grammar."""
SLOW_STEPS: Final = 3
UNDECIDED: Final = "!"
"""First character of a verdict that is about this machine's load and not about the grammar."""


def send(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(struct.pack("<I", len(data)))
    pipe.write(data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes:
    """Reads one message. Raises EOFError at the end of the pipe."""
    head = pipe.read(4)
    if len(head) < 4:
        raise EOFError
    (length,) = struct.unpack("<I", head)
    data = pipe.read(length)
    if len(data) < length:
        raise EOFError
    return data


def lower_priority(thread: int) -> None:
    """Lowers a thread's priority: where all cores compute tokens, streams come first and this thread gets the rest."""
    with suppress(OSError, AttributeError):  # then the thread keeps its normal priority
        os.setpriority(os.PRIO_PROCESS, thread, NICE)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the engine's: it closes the pipe when it ends
    lower_priority(0)
    source, target = sys.stdin.buffer, sys.stdout.buffer
    try:
        path, eos, lengths, pieces = (receive(source) for _ in range(4))
        guidance = Guidance(C.CDLL(os.fsdecode(path)), int(eos), lengths, pieces)
        send(target, b"ready")
        while True:
            send(target, tried(guidance, receive(source)).encode("utf-8", "replace"))
    except (EOFError, BrokenPipeError):
        pass


def tried(guidance: Guidance, grammar: bytes) -> str:
    """Tries a grammar out in a child. Returns "" if it may be used, otherwise the reason."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _child(guidance, grammar, writing)
    os.close(writing)
    try:
        in_time = bool(select.select([reading], [], [], WALL_S)[0])
        said = os.read(reading, 4096) if in_time else b""
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if said:
        return said[1:].decode("utf-8", "replace")
    if not in_time:
        return f"{UNDECIDED}it could not be tried within {WALL_S:g} s"
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
        return f"it takes more than {CPU_S:g} s to compile; make it smaller"
    return f"it is too deep, or takes more than {MEMORY >> 20} MB to compile; make it smaller"


def _bound_memory(statm: Path = Path("/proc/self/statm")) -> None:
    """Lets this process take MEMORY more than it has. Where the system does not say how much that is, as on macOS, only
    the time is bounded."""
    with suppress(OSError):
        used = int(statm.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))


def _child(guidance: Guidance, grammar: bytes, writing: int) -> None:
    """Compiles and walks in the child. Default actions end it: SIGPROF when the CPU time is used up, an abort when
    there is no memory."""
    try:
        _bound_memory()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)  # hides what an abort prints
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        handle, error = guidance.matcher(grammar)
        os.write(writing, b"." + (error or walked(guidance, handle)).encode("utf-8", "replace"))
    finally:
        os._exit(0)


def walked(guidance: Guidance, compiled: int) -> str:
    """Walks through the grammar's first tokens as a model may; returns what is too slow or fails, or ""."""
    c, size = guidance.c, (guidance.n_vocab + 31) // 32 * 4
    words = C.create_string_buffer(size)
    rng, slow = random.Random(1), 0
    for _ in range(WALKS):
        handle = c.llg_clone_matcher(compiled)
        for _ in range(STEPS):
            began = time.thread_time()
            c.llg_matcher_compute_mask_into(handle, words, size)
            masked = time.thread_time() - began
            token = _one_of(words.raw, rng)
            if token is None or c.llg_matcher_is_stopped(handle):
                break
            began = time.thread_time()
            c.llg_matcher_consume_token(handle, token)
            slow += masked + time.thread_time() - began > STEP_S
            if slow >= SLOW_STEPS:
                return f"it takes more than {STEP_S * 1e3:g} ms for a token; make it simpler"
        if error := guidance.error(handle):
            return f"it is too costly to follow ({error[:120]}); make it simpler"
    return ""


def _one_of(mask: bytes, rng: random.Random) -> int | None:
    """Returns a random token whose bit is set; None: there is none."""
    first = rng.randrange(len(mask))
    for at in chain(range(first, len(mask)), range(first)):
        if mask[at]:
            bits = [bit for bit in range(8) if mask[at] >> bit & 1]
            return 8 * at + bits[rng.randrange(len(bits))]
    return None


if __name__ == "__main__":
    main()
