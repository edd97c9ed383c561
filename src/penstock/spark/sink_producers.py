"""Producers that outlive a task, so that a stream's micro-batches share connections and a producer id.

A broker remembers every producer id for a day; one for each task of each micro-batch would fill its memory. A
producer is kept only when all of its records are acked, and never after an error.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.client.wire import Cluster
from penstock.client.wire.producer import BatchProducer
from penstock.spark.sink_options import SinkOptions

MOST_KEPT: Final = 4

_Kept = tuple[Cluster, BatchProducer]
_kept: dict[tuple[int, SinkOptions], _Kept] = {}
"""By process too: a worker is a fork, and must not speak on its parent's sockets."""


@contextmanager
def borrowed(options: SinkOptions) -> Iterator[BatchProducer]:
    """A producer of these options for the caller alone. Everything is acked when the block ends without an error."""
    key = os.getpid(), options
    cluster, producer = _kept.pop(key) if key in _kept else _made(options)
    try:
        producer.forget_topics()
        yield producer
        producer.flush()
    except BaseException:
        _close(cluster, producer)
        raise
    if key in _kept:
        _close(cluster, producer)
        return
    _kept[key] = cluster, producer
    while len(_kept) > MOST_KEPT:
        _close(*_kept.pop(next(iter(_kept))))  # the one that was used longest ago


def _made(options: SinkOptions) -> _Kept:
    cluster = Cluster(options.client)
    return cluster, BatchProducer(
        cluster,
        compression=options.compression,
        max_in_flight=options.max_in_flight,
        delivery_timeout_ms=options.delivery_timeout_ms,
        max_request_bytes=options.max_request_bytes,
        batch_bytes=options.batch_bytes,
        buffer_bytes=options.buffer_bytes,
    )


def _close(cluster: Cluster, producer: BatchProducer) -> None:
    producer.close()
    cluster.close()
