"""What time is it? The only module that may ask the machine.

Everything that decides takes `now` as an argument; everything that measures takes a `Clock`, so a
test or a simulator can hand in its own.
"""

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds on a monotonic scale. Differences mean something, absolute values do not."""

monotonic: Clock = time.monotonic

wall: Clock = time.time
"""Seconds since 1970, for what people and other machines read (`created`, log lines); never for a decision."""
