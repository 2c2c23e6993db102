"""Garbage is collected as before when a measurement is over, however it ended."""

import gc
from contextlib import suppress

from headgate.garbage import rarely_collected


def test_it_is_seldom_meanwhile_and_as_before_afterwards() -> None:
    before = gc.get_threshold()
    frozen = gc.get_freeze_count()
    with suppress(RuntimeError), rarely_collected():
        assert gc.get_threshold()[0] > before[0]
        assert gc.get_freeze_count() > frozen
        raise RuntimeError
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
