"""Connections that outlive a task: Spark runs many tasks in one Python worker, and each would have to connect again.

One client per settings and process. A worker runs one task at a time, so two tasks never use a client at the same time;
a second borrower of the same settings gets a client of its own.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.client.wire import ClientSettings, Cluster

MOST_KEPT: Final = 8

_kept: dict[tuple[int, ClientSettings], Cluster] = {}
"""Also by process: a worker is a fork, and must not use its parent's sockets."""


@contextmanager
def borrowed(settings: ClientSettings) -> Iterator[Cluster]:
    key = os.getpid(), settings
    cluster = _kept.pop(key, None) or Cluster(settings)
    try:
        yield cluster
    except BaseException:
        cluster.close()  # an answer may be half read
        raise
    if key in _kept:
        cluster.close()
        return
    _kept[key] = cluster
    while len(_kept) > MOST_KEPT:
        _kept.pop(next(iter(_kept))).close()  # the least recently used
