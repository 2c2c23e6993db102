"""When is memory looked through for what nobody uses any more? Seldom, while something is measured or simulated."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Nothing of what was there before is looked at, and the rest seldom: requests leave no cycles behind. To a bench a
    pause would look like the server's; of a simulation it would take a tenth."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
