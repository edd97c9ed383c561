"""A broker that cannot execute a request yet: reported as such, and asked again where a retry may help."""

import subprocess
import sys
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from penstock.cli import connection as connections
from penstock.cli import topic_facts
from penstock.cli.connection import Connection
from penstock.cli.problem import Problem


def answered(code: int | None) -> "Future[None]":
    future: Future[None] = Future()
    if code is None:
        future.set_result(None)
    else:
        future.set_exception(KafkaException(KafkaError(code)))
    return future


class Metadata:
    """Metadata as librdkafka returns it."""

    def __init__(self, controller_id: int, nodes: int) -> None:
        self.controller_id = controller_id
        self.brokers = dict.fromkeys(range(nodes))


def knowing(monkeypatch: pytest.MonkeyPatch, found: Any) -> Connection:
    """A connection to a broker that returns this, or raises it."""

    class Admin:
        def list_topics(self, timeout: float) -> Any:
            if isinstance(found, Exception):
                raise found
            return found

    monkeypatch.setattr(Connection, "admin", lambda self: Admin())
    monkeypatch.setattr(Connection, "refusal", lambda self: None)
    monkeypatch.setattr(connections, "RETRY_PAUSE_S", 0.0)
    return Connection(bootstrap="10.0.0.1:9092")


def test_a_request_that_lacks_a_controller_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = knowing(monkeypatch, None)
    answers = [answered(KafkaError.NOT_CONTROLLER), answered(KafkaError.NOT_CONTROLLER), answered(None)]
    assert connection.change(lambda: answers.pop(0), "creating orders")
    assert answers == []


def test_retries_end_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = knowing(monkeypatch, None)
    monkeypatch.setattr(connections, "RETRY_S", -1.0)
    with pytest.raises(Problem) as problem:
        connection.change(lambda: answered(KafkaError.NOT_CONTROLLER), "creating orders")
    assert "majority" in problem.value.hint


def test_a_request_refused_for_another_reason_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = knowing(monkeypatch, None)
    answers = [answered(KafkaError.TOPIC_ALREADY_EXISTS), answered(None)]
    assert not connection.change(
        lambda: answers.pop(0), "creating orders", tolerated=KafkaError.TOPIC_ALREADY_EXISTS
    )
    assert len(answers) == 1


def test_a_broker_without_a_controller_is_not_reported_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = knowing(monkeypatch, Metadata(-1, 3))
    with pytest.raises(Problem, match="its cluster of 3 nodes has no controller") as problem:
        connection.change(lambda: answered(KafkaError._TIMED_OUT), "creating orders")
    assert "voters" in problem.value.hint


def test_a_node_that_closes_all_connections_is_reported_as_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = knowing(monkeypatch, KafkaException(KafkaError(KafkaError._TRANSPORT)))
    with pytest.raises(Problem, match="does not answer yet: it is starting, or waits for the other nodes"):
        connection.wait(answered(KafkaError._TIMED_OUT), "listing")


def test_listing_topics_on_a_node_without_a_majority_does_not_report_a_missing_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It accepts connections and closes them."""
    connection = knowing(monkeypatch, KafkaException(KafkaError(KafkaError._TRANSPORT)))
    with pytest.raises(Problem, match="it is starting, or waits for the other nodes") as problem:
        topic_facts.all_topics(connection)
    assert "majority" in problem.value.hint


def test_python_dash_m_penstock_is_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "--help"], capture_output=True, text=True, check=True
    )
    assert "serve" in done.stdout
