"""Python's collector of cycles, which walks all that is in memory again and again."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused(*, is_last: bool = False) -> Iterator[None]:
    """Keep the collector off.

    Results are trees, and a command that reads them ends soon; of a timed round, a collection would
    be charged to whichever rank it struck. Where `is_last`, the process does nothing more: then it
    never walks what there is by then.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_last:
            gc.freeze()
        if was_enabled:
            gc.enable()
