"""Connections that outlive a task: Spark uses a Python worker for many tasks, and each would connect anew.

One client per settings and process. A worker runs one task at a time, so nobody shares a client at the same moment;
a second borrower of the same settings gets one of its own.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.client.wire import ClientSettings, Cluster

MOST_KEPT: Final = 8

_kept: dict[tuple[int, ClientSettings], Cluster] = {}
"""By process too: a worker is a fork, and must not speak on its parent's sockets."""


@contextmanager
def borrowed(settings: ClientSettings) -> Iterator[Cluster]:
    key = os.getpid(), settings
    cluster = _kept.pop(key, None) or Cluster(settings)
    try:
        yield cluster
    except BaseException:
        cluster.close()  # who knows what was half read
        raise
    if key in _kept:
        cluster.close()
        return
    _kept[key] = cluster
    while len(_kept) > MOST_KEPT:
        _kept.pop(next(iter(_kept))).close()  # the one that was used longest ago
