"""Clients cannot fill the log: many connections that are closed for the same reason share a line."""

import logging

import pytest

from penstock import Broker
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.fetch import FetchRequest
from penstock.node.limits.limited_log import MOST_SUBJECTS, QUIET_SECONDS, LimitedLog
from tests.kafka.raw import RawClient

BAD_CONNECTIONS = 50


def test_bad_connections_with_one_reason_share_a_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "penstock.kafka"), Broker(http=None) as broker:
        for number in range(BAD_CONNECTIONS):
            with RawClient(broker) as client:
                client.socket.sendall((2**30 + number).to_bytes(4, "big"))  # longer than a frame may be
                assert client.socket.recv(1) == b""
    lines = [line for line in caplog.messages if line.startswith("closing ")]
    assert 1 <= len(lines) < BAD_CONNECTIONS / 2


def test_fetches_as_a_replica_share_a_line(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, "penstock.kafka"),
        Broker(http=None) as broker,
        RawClient(broker) as client,
    ):
        for number in range(BAD_CONNECTIONS):
            client.call(ApiKey.FETCH, 11, FetchRequest(replica_id=number))
    assert len([line for line in caplog.messages if "as replica" in line]) < BAD_CONNECTIONS / 2


def test_lines_that_were_left_out_are_counted_in_the_next_one(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    limited = LimitedLog(logging.getLogger("penstock.test"), lambda: now)
    for _ in range(1_000):
        limited.warn("bad", "a bad connection")
    limited.warn("other", "another reason")
    now = QUIET_SECONDS
    limited.warn("bad", "a bad connection")
    assert caplog.messages == [
        "a bad connection",
        "another reason",
        "a bad connection (999 more of this kind since the last such line)",
    ]


def test_reasons_that_never_repeat_are_bounded_too(caplog: pytest.LogCaptureFixture) -> None:
    limited = LimitedLog(logging.getLogger("penstock.test"), lambda: 0.0)
    for number in range(10_000):
        limited.warn(f"reason {number}", "a bad connection")
    assert len(caplog.messages) == MOST_SUBJECTS + 1
