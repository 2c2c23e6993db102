"""Wakes the client at an exact time: event loops round to a millisecond, a large part of a first token's time."""

import asyncio
import ctypes
import os
from collections.abc import Callable
from typing import Protocol

from headgate.model.clock import Clock

CLOCK_MONOTONIC, TFD_TIMER_ABSTIME = 1, 1
TFD_NONBLOCK, TFD_CLOEXEC = os.O_NONBLOCK, os.O_CLOEXEC


class Alarm(Protocol):
    def set(self, at: float) -> None:
        """Ring at `at` on the monotonic clock, and not at the time set before; a time in the past rings at once."""

    def close(self) -> None: ...


def alarm(loop: asyncio.AbstractEventLoop, clock: Clock, ring: Callable[[], None]) -> Alarm:
    try:
        return _KernelAlarm(loop, ring)
    except (OSError, AttributeError):  # not Linux, or timerfd is not allowed here
        return _LoopAlarm(loop, clock, ring)


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("it_interval", _Timespec), ("it_value", _Timespec))


class _KernelAlarm:
    """A timerfd, accurate to some ten microseconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "no timerfd")
        self._loop = loop
        self._ring = ring
        loop.add_reader(self._fd, self._rang)

    def set(self, at: float) -> None:
        nanoseconds = max(1, int(at * 1e9))
        setting = _Setting(_Timespec(0, 0), _Timespec(nanoseconds // 1_000_000_000, nanoseconds % 1_000_000_000))
        self._libc.timerfd_settime(self._fd, TFD_TIMER_ABSTIME, ctypes.byref(setting), None)

    def _rang(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # set again in the meantime
        self._ring()

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1


class _LoopAlarm:
    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, ring: Callable[[], None]) -> None:
        self._loop, self._clock, self._ring = loop, clock, ring
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at: float) -> None:
        self.close()
        self._handle = self._loop.call_later(max(0.0, at - self._clock()), self._ring)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
