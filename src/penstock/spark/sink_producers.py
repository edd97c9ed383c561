"""Producers that outlive a task, so that a stream's micro-batches share connections and a producer id.

A broker remembers every producer id for a day; one for each task of each micro-batch would fill its memory. A
producer is kept only when all of its records are acked, and never after an error.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.client.wire import ClientSettings, Cluster
from penstock.client.wire.producer import BatchProducer, TransactionIdentity
from penstock.spark.sink_options import SinkOptions

MOST_KEPT: Final = 4

_Kept = tuple[Cluster, BatchProducer]
_kept: dict[tuple[int, SinkOptions], _Kept] = {}
"""By process too: a worker is a fork, and must not speak on its parent's sockets."""
_clusters: dict[tuple[int, ClientSettings], Cluster] = {}
"""The same for attempts."""


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


@contextmanager
def of_attempt(options: SinkOptions, identity: TransactionIdentity) -> Iterator[BatchProducer]:
    """A producer of one attempt. Only its connections are kept: the next attempt has another identity."""
    key = os.getpid(), options.client
    cluster = _clusters.pop(key, None) or Cluster(options.client)
    producer = _producer(cluster, options, identity)
    try:
        yield producer
        producer.flush()
        producer.close()
    except BaseException:
        _close(cluster, producer)
        raise
    _clusters[key] = cluster
    while len(_clusters) > MOST_KEPT:
        _clusters.pop(next(iter(_clusters))).close()


def _made(options: SinkOptions) -> _Kept:
    cluster = Cluster(options.client)
    return cluster, _producer(cluster, options)


def _producer(
    cluster: Cluster, options: SinkOptions, identity: TransactionIdentity | None = None
) -> BatchProducer:
    return BatchProducer(
        cluster,
        transaction=identity,
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
