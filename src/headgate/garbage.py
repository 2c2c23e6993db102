"""Makes Python's garbage collection rare while something is measured or simulated."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Exempts existing objects from collection and collects the rest rarely: requests leave no cycles behind. In a
    bench a pause would look like the server's; in a simulation collecting would take a tenth of the time."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
