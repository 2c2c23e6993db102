"""Cores that do not halt while a paced load runs.

A virtual core with nothing to do goes back to the host, and a busy host returns it milliseconds, at times a tenth of
a second, after the packet that should wake it. That wait is the host's, and it falls on the program that happens to
be measured. A program that only burns what no other wants (SCHED_IDLE: any other wakes before it) keeps the core;
what is measured is then the program under test. Both have to be of one session, or the kernel (autogroup) shares the
core evenly between their sessions first, and the one wakes a tick late.
"""

import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

BURN = """
import os, sys
os.sched_setaffinity(0, [int(sys.argv[1])])
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
parent = os.getppid()
while os.getppid() == parent: pass
"""
"""Until the process that started it is gone, however that ended."""


@contextmanager
def kept_awake(cores: Iterable[int]) -> Iterator[None]:
    with ExitStack() as stack:
        for core in cores:
            burner = subprocess.Popen([sys.executable, "-c", BURN, str(core)])
            stack.callback(burner.wait)
            stack.callback(burner.kill)
        yield
