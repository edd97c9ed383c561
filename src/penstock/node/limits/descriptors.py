"""How the process' file descriptors are shared. Each user has a bound, so that none takes the last ones from another: a
node that cannot open a file cannot flush, and one that cannot accept a connection cannot be asked why.

    Kafka connections     three quarters of many, half of a thousand, a quarter of a hundred: others need about 512
    HTTP connections      an eighth
    the process itself    a quarter, at most 64: sockets that listen, the event loop, votes, and files that threads open
                          for a moment (checkpoints, indexes, snapshots, compaction)
    logs                  the rest: open segments, and as many that are being flushed (`log.open_files`)

`penstock serve` first raises the soft limit to the hard one (`ulimit -Hn`).
"""

import resource
import sys

HTTP_SHARE = 8
OWN_MOST = 64
KEPT_FROM_KAFKA = 512


def for_kafka() -> int:
    most = _limit()
    return most - max(most // 4, min(KEPT_FROM_KAFKA, most * 3 // 4))


def for_http() -> int:
    return _limit() // HTTP_SHARE


def for_logs() -> int:
    """How many segments may have their file open, beside those that are being flushed: these are no more."""
    most = _limit()
    return (most - for_kafka() - for_http() - min(OWN_MOST, most // 4)) // 2


def _limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
