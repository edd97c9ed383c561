"""Keeps Python's search for garbage short in a process that is only a broker, or a command.

Nothing else runs while Python searches for cycles of objects that are no longer used. A full search looks at all
objects, 0.5 µs each: with 10,000 partitions that is 0.3 seconds. Most objects belong to replicas and live as long as
their topics, so they are excluded from the search (`gc.freeze`) when there are many new ones. A replica that is closed
is freed without a search (`PartitionReplica.let_go`).

Modules live as long as the process, so there is no search while they are loaded.

Everything that exists at such a moment is excluded, also objects that will be garbage later, such as those of HTTP
connections. When there are far more objects than replicas can explain, one full search looks at all of them.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = 10_000, 3, 10
"""Requests leave no cycles: to search for them after every 700 objects would cost some percent of the time. These
numbers bound a search in the first two generations to 10,000 and 40,000 objects."""
BLOCKS_PER_REPLICA = 300
"""Blocks of memory; a replica has about 130, and some more for each other replica of its partition."""
OTHER_BLOCKS = 1_000_000
"""About 100 MB."""


@contextmanager
def loading_modules() -> Iterator[None]:
    """Does not search while modules are loaded, and excludes them."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class LongLivedObjects:
    """Decides when objects are excluded from the search."""

    def __init__(self) -> None:
        gc.set_threshold(*THRESHOLDS)
        self._after_search = sys.getallocatedblocks()
        """How many blocks were in use when no garbage was excluded."""

    def exclude(self, replicas: int) -> None:
        """The node holds so many replicas, and many of them are new."""
        most = 2 * self._after_search + OTHER_BLOCKS + BLOCKS_PER_REPLICA * replicas
        if sys.getallocatedblocks() > most:
            gc.unfreeze()
            gc.collect()
            self._after_search = sys.getallocatedblocks()
        gc.freeze()
