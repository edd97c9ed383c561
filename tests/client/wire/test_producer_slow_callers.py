"""Callers that leave a producer alone for longer than delivery.timeout.ms, such as a Spark task with a slow function
before its sink. The producer has no thread of its own, so meanwhile it can neither read answers nor try again: that
time is not the brokers'."""

import time
from types import SimpleNamespace

import pytest

from penstock.client.wire import producer as producer_module
from penstock.errors import ErrorCode
from tests.client.wire.test_producer_faults import FakeLog, Fault, Step, producing, send, values

DELIVERY_TIMEOUT_MS = 60_000


@pytest.mark.parametrize("lost", [Fault.HANG_UP, Fault.WRITE_AND_HANG_UP, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_batches_lost_while_the_caller_was_busy_are_sent_again(
    lost: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead_s = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead_s, sleep=time.sleep)
    monkeypatch.setattr(producer_module, "time", clock)
    log = FakeLog([ErrorCode.NONE, lost])
    with producing(log, delivery_timeout_ms=DELIVERY_TIMEOUT_MS) as producer:
        send(producer, values(12))  # several requests: some are in flight when this returns
        ahead_s = 2 * DELIVERY_TIMEOUT_MS / 1000  # the caller's own time, which must not count
        send(producer, values(15)[12:])
        producer.flush()
    assert log.values == values(15)
