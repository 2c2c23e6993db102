"""Reads the machine's clocks. No other module may.

Code that decides takes `now` as an argument; code that measures takes a `Clock`, so that a test or a simulator can pass
its own.
"""

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds on a monotonic scale. Only differences between two readings mean anything."""

monotonic: Clock = time.monotonic

wall: Clock = time.time
"""Seconds since 1970, for what people and other machines read (`created`, log lines). No decision may use it."""
