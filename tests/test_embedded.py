"""A broker inside the process: fast to start, several at once, and without leftovers."""

import logging
import socket
import ssl
import threading
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock import Broker, service
from penstock.client import Client
from penstock.errors import ConfigError, DataFolderInUse

PATIENCE_SECONDS = 60.0


def produce(broker: Broker, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(PATIENCE_SECONDS) == 0


def end_offset(broker: Broker, topic: str) -> int:
    reader = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "x"})
    end = reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE_SECONDS)[1]
    reader.close()
    return int(end)


def test_it_leaves_no_thread_no_port_and_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(threading.enumerate())
    with Broker() as broker:
        produce(broker, "t", "x")
        host, port = broker.bootstrap_servers.split(":")
    assert set(threading.enumerate()) - before == set()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=1)
    assert list(tmp_path.iterdir()) == []


def test_several_brokers_in_one_process_are_independent() -> None:
    with Broker() as one, Broker() as two:
        produce(one, "mine", "x")
        topics = (
            AdminClient({"bootstrap.servers": two.bootstrap_servers})
            .list_topics(timeout=PATIENCE_SECONDS)
            .topics
        )
        assert "mine" not in topics


def test_records_on_disk_survive_a_restart(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as first:
        produce(first, "kept", "a", "b")
    with Broker(data_dir=tmp_path) as second:
        assert end_offset(second, "kept") == 2
        produce(second, "kept", "c")
    with Broker(data_dir=tmp_path) as third:
        assert end_offset(third, "kept") == 3


def test_a_data_folder_serves_one_broker_at_a_time(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path), pytest.raises(DataFolderInUse, match=str(tmp_path)):
        Broker(data_dir=tmp_path)
    Broker(data_dir=tmp_path).close()


def test_a_port_in_use_is_named_and_leaves_nothing_behind() -> None:
    before = set(threading.enumerate())
    with Broker() as broker, pytest.raises(ConfigError, match=broker.bootstrap_servers):
        Broker(kafka=broker.bootstrap_servers)
    assert set(threading.enumerate()) <= before


def test_closing_twice_is_fine() -> None:
    broker = Broker()
    broker.close()
    broker.close()


def test_clients_that_are_connected_do_not_keep_it_from_closing() -> None:
    broker = Broker()
    reader = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "log_level": 0})
    reader.subscribe(["t"])
    produce(broker, "t", "x")
    reader.poll(0.2)
    broker.close()
    reader.close()


def test_the_fixtures_of_the_pytest_plugin_work(penstock_broker: Broker, penstock_topic: str) -> None:
    assert end_offset(penstock_broker, penstock_topic) == 0
    produce(penstock_broker, penstock_topic, "x")
    assert end_offset(penstock_broker, penstock_topic) == 1


def test_it_logs_nothing_in_its_host_and_leaves_the_loggers_of_uvicorn_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A web service may embed a broker, and have its own uvicorn, and a root logger at level INFO."""
    access = logging.getLogger("uvicorn.access")
    handler = logging.NullHandler()
    access.addHandler(handler)
    try:
        with caplog.at_level(logging.INFO), Broker() as broker:
            with Client(broker.bootstrap_servers) as client:
                client.admin.create_queue("jobs")
                client.publish("jobs", b"one")
                with client.queue("jobs") as jobs:
                    job = jobs.receive(30)
                    assert job is not None
                    job.ack()
            with urllib.request.urlopen(f"{broker.http_url}/health", timeout=30) as answer:
                assert answer.status == 200
        assert handler in access.handlers
        assert access.propagate
        lines = [f"{line.name}: {line.message}" for line in caplog.records]
        # A machine that does other things too may hold the event loop: the log says so. Clients of other tests may
        # still be at work in this process.
        assert [
            line for line in lines if "the event loop was held" not in line and not line.startswith("kafka.")
        ] == []
    finally:
        access.removeHandler(handler)


def test_a_web_stack_that_cannot_be_loaded_closes_its_port_and_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ImportError("No module named 'starlette'")

    monkeypatch.setattr(service, "_import_web", fail)
    with Broker() as broker:
        address = urlsplit(broker.http_url)
        caller = socket.create_connection((address.hostname, address.port), PATIENCE_SECONDS)
        with caller, pytest.raises(ConnectionResetError):
            caller.recv(1)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address.hostname, address.port), PATIENCE_SECONDS)
        produce(broker, "t", "x")
    assert "the HTTP port cannot be served" in caplog.text


def test_a_broker_with_tls_has_certificates_that_end_with_it() -> None:
    with Broker(tls=True) as broker:
        ca = Path(broker.tls_ca_file or "")
        assert AdminClient(broker.client_settings()).list_topics(timeout=60).brokers
        assert broker.http_url.startswith("https://")
        context = ssl.create_default_context(cafile=str(ca))
        with urllib.request.urlopen(f"{broker.http_url}/ready", context=context, timeout=60) as answer:
            assert answer.status == 200
    assert not ca.exists()


def test_a_broker_without_tls_names_no_authority(broker: Broker) -> None:
    assert broker.tls_ca_file is None
    assert broker.client_settings() == {"bootstrap.servers": broker.bootstrap_servers}


def test_the_pytest_plugin_has_a_broker_with_tls(penstock_tls_broker: Broker) -> None:
    assert AdminClient(penstock_tls_broker.client_settings()).list_topics(timeout=PATIENCE_SECONDS).brokers


def test_a_broker_knows_the_settings_of_its_users() -> None:
    with Broker(users={"alice": "alice-password"}, http=None) as broker:
        for user in ("alice", "admin"):
            settings = broker.client_settings(user)
            assert settings["security.protocol"] == "sasl_plaintext"
            assert AdminClient(settings).list_topics(timeout=PATIENCE_SECONDS).brokers
        assert broker.client_arguments("alice") == {"user": "alice", "password": "alice-password"}
        with pytest.raises(ValueError, match="user='bob': expected one of alice, admin"):
            broker.client_settings("bob")


def test_the_pytest_plugin_has_a_broker_with_users_and_tls(penstock_secure_broker: Broker) -> None:
    for user in ("admin", "alice"):
        settings = penstock_secure_broker.client_settings(user)
        assert AdminClient(settings).list_topics(timeout=PATIENCE_SECONDS).brokers
    arguments = penstock_secure_broker.client_arguments("admin")
    with Client(penstock_secure_broker.bootstrap_servers, **arguments) as own:
        assert own.admin.queues() == []
