"""Tables that are written without Spark: which records a commit has, and what it does with trouble."""

import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from penstock import Broker
from penstock.cli.table_writer import MODULE
from penstock.client.wire import ClientSettings, Cluster
from penstock.spark.lake import background_writer, topic_rows
from penstock.spark.lake.background_process import WriterSettings, client_settings
from penstock.spark.lake.background_writer import BackgroundWriter
from penstock.spark.lake.delta_table import DeltaTopicTable
from penstock.spark.lake.folder import DELTA, Lake, TopicFacts
from penstock.spark.lake.iceberg_catalog import CATALOG_FILE
from penstock.spark.lake.record_columns import RECORD_SCHEMA

from .conftest import offsets_in

EVENING_MS = 1_767_225_600_000 - 5_000
"""Five seconds before 2026 begins."""


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    with Cluster(ClientSettings(bootstrap_servers=broker.bootstrap_servers)) as found:
        yield found


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path))


def table_of(lake: Lake, topic: str) -> DeltaTopicTable:
    table = lake.table(topic)
    assert isinstance(table, DeltaTopicTable)
    return table


def rows_of(lake: Lake, topic: str) -> list[dict[str, Any]]:
    rows = (
        table_of(lake, topic)
        .delta.to_pyarrow_table()
        .sort_by([("partition", "ascending"), ("offset", "ascending")])
    )
    return list(rows.to_pylist())


def test_a_table_has_the_unchanged_records_by_utc_date(
    cluster: Cluster, lake: Lake, make_topic: Callable[..., str], produce: Callable[..., None]
) -> None:
    topic = make_topic("table", partitions=2)
    sent = [
        {
            "key": None if number % 3 == 0 else f"k{number}",
            "value": None if number % 4 == 0 else f"v{number}",
            "partition": number % 2,
            "timestamp": EVENING_MS + number * 1000,
            "headers": [("n", str(number).encode()), ("none", None)] if number % 2 else None,
        }
        for number in range(10)
    ]
    produce(topic, sent)
    writer = BackgroundWriter(cluster, lake, batch_bytes=1 << 20)
    writer.write_all([topic])
    found = rows_of(lake, topic)
    assert [(row["partition"], row["offset"]) for row in found] == [
        (p, o) for p in range(2) for o in range(5)
    ]
    for row in found:
        number = row["offset"] * 2 + row["partition"]
        assert row["key"] == (None if number % 3 == 0 else b"k%d" % number)
        assert row["value"] == (None if number % 4 == 0 else b"v%d" % number)
        assert row["timestamp"].timestamp() * 1000 == EVENING_MS + number * 1000
        assert row["date"].isoformat() == ("2025-12-31" if number < 5 else "2026-01-01")
        headers = [{"key": "n", "value": str(number).encode()}, {"key": "none", "value": None}]
        assert row["headers"] == (headers if number % 2 else None)
    assert {len(table_of(lake, topic).files())} == {2}  # one for each date
    version = table_of(lake, topic).version
    writer.write_all([topic])
    assert table_of(lake, topic).version == version  # nothing new, no commit


def test_a_commit_has_no_more_than_its_bytes_and_another_process_continues(
    cluster: Cluster, lake: Lake, make_topic: Callable[..., str], produce: Callable[..., None]
) -> None:
    topic = make_topic("table", partitions=2)
    large = [{"value": b"x" * 50_000, "partition": number % 2} for number in range(8)]
    produce(topic, large, **{"batch.num.messages": 1})  # so that they can be cut
    first = BackgroundWriter(cluster, lake, batch_bytes=128 << 10)
    assert first.write(topic)
    assert len(rows_of(lake, topic)) == 4  # of each partition as many as pass its half
    BackgroundWriter(cluster, lake, batch_bytes=128 << 10).write_all([topic])
    assert [row["offset"] for row in rows_of(lake, topic)] == [*range(4), *range(4)]


def test_aborted_records_are_left_out_and_the_end_is_behind_the_markers(
    broker: Broker, cluster: Cluster, lake: Lake, make_topic: Callable[..., str], unique: Callable[[str], str]
) -> None:
    topic = make_topic("table")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": unique("id")})
    producer.init_transactions(30)
    for value, ends in ((b"kept", producer.commit_transaction), (b"aborted", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(30)
        ends(30)
    writer = BackgroundWriter(cluster, lake, batch_bytes=1 << 20)
    writer.write_all([topic])
    assert [row["value"] for row in rows_of(lake, topic)] == [b"kept"]
    assert table_of(lake, topic).positions == {0: 4}  # two records and two markers
    assert not writer.write(topic)


def test_a_writer_that_is_overtaken_goes_on_behind_the_other(
    cluster: Cluster, lake: Lake, make_topic: Callable[..., str], produce: Callable[..., None]
) -> None:
    topic = make_topic("table")
    produce(topic, [b"0"])
    one, two = (BackgroundWriter(cluster, lake, batch_bytes=1 << 20) for _ in range(2))
    one.write_all([topic])
    two.write_all([topic])
    for number in range(1, 5):
        produce(topic, [b"%d" % number])
        for writer in (one, two) if number % 2 else (two, one):
            writer.write_all([topic])
    assert offsets_in(table_of(lake, topic)) == list(range(5))


def test_records_that_were_deleted_before_are_told_of_and_the_rest_is_written(
    broker: Broker,
    cluster: Cluster,
    lake: Lake,
    make_topic: Callable[..., str],
    produce: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = make_topic("table")
    produce(topic, [b"0", b"1"])
    writer = BackgroundWriter(cluster, lake, batch_bytes=1 << 20)
    writer.write_all([topic])
    produce(topic, [b"2", b"3", b"4"])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for done in admin.delete_records([TopicPartition(topic, 0, 4)]).values():
        done.result(30)
    with caplog.at_level(logging.ERROR):
        writer.write_all([topic])
    assert "offsets 2 to 3 were deleted before they were in the table" in caplog.text
    assert offsets_in(table_of(lake, topic)) == [0, 1, 4]


def test_a_topic_that_cannot_be_written_does_not_hold_up_others_and_is_told_of_once(
    cluster: Cluster,
    lake: Lake,
    make_topic: Callable[..., str],
    produce: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    decoded, again, good = (make_topic(f"{letter}-table") for letter in "abc")
    facts = TopicFacts(topic_id=str(cluster.topics([decoded])[decoded].topic_id), partitions=1)
    narrow = pa.schema([field for field in RECORD_SCHEMA if field.name != "value"])
    lake.create(decoded, narrow, facts, {}, {})
    lake.create(again, RECORD_SCHEMA, TopicFacts(topic_id="another", partitions=1), {}, {})
    for topic in (decoded, again, good):
        produce(topic, [b"0"])
    writer = BackgroundWriter(cluster, lake, batch_bytes=1 << 20)
    with caplog.at_level(logging.WARNING):
        writer.write_all([decoded, again, good, "no-such-topic"])
        writer.write_all([decoded, again, good, "no-such-topic"])
    told = [record.getMessage() for record in caplog.records if record.name == "penstock.lake"]
    assert len(told) == 2
    assert "has no column value" in told[0]
    assert "was deleted and created again" in told[1]
    assert offsets_in(table_of(lake, good)) == [0]


def test_small_files_are_merged_now_and_then(
    cluster: Cluster,
    lake: Lake,
    make_topic: Callable[..., str],
    produce: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = make_topic("table")
    monkeypatch.setattr(background_writer, "CARE_COMMITS", 4)
    produce(topic, [b"%d" % number for number in range(4)], **{"batch.num.messages": 1})
    writer = BackgroundWriter(cluster, lake, batch_bytes=1)
    monkeypatch.setattr(topic_rows, "LEAST_SHARE_BYTES", 1)
    writer.write_all([topic])
    assert len(table_of(lake, topic).files()) == 1
    assert offsets_in(table_of(lake, topic)) == list(range(4))


def test_the_login_of_the_process_is_in_a_file_of_kafkas_settings(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "# the user lake\nsecurity.protocol = SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        "sasl.username=lake\nsasl.password=a=b\n"
    )
    settings = WriterSettings(
        bootstrap_servers="127.0.0.1:1", root="/x", interval_ms=1, batch_bytes=1, client_config=str(file)
    )
    found = client_settings(settings)
    assert (found.bootstrap_servers, found.security.mechanism) == ("127.0.0.1:1", "SCRAM-SHA-256")
    assert json.dumps(found.security.password) == '"a=b"'


def test_headers_count_as_bytes_of_a_commit(
    cluster: Cluster, lake: Lake, make_topic: Callable[..., str], produce: Callable[..., None]
) -> None:
    topic = make_topic("table")
    large = [{"headers": [("h", b"x" * 50_000)]} for _ in range(6)]
    produce(topic, large, **{"batch.num.messages": 1})
    assert BackgroundWriter(cluster, lake, batch_bytes=128 << 10).write(topic)
    assert len(rows_of(lake, topic)) == 3


def test_a_topic_that_has_always_more_does_not_hold_up_others(
    cluster: Cluster,
    lake: Lake,
    make_topic: Callable[..., str],
    produce: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy, calm = make_topic("a-table"), make_topic("b-table")
    monkeypatch.setattr(topic_rows, "LEAST_SHARE_BYTES", 1)
    produce(busy, [b"0", b"1", b"2"], **{"batch.num.messages": 1})
    produce(calm, [b"0"])
    written: list[str] = []

    class Observed(BackgroundWriter):
        def write(self, name: str) -> bool:
            written.append(name)
            return super().write(name)

    Observed(cluster, lake, batch_bytes=1).write_all([busy, calm])
    assert written[:2] == [busy, calm]
    assert offsets_in(table_of(lake, busy)) == [0, 1, 2]
    assert offsets_in(table_of(lake, calm)) == [0]


def test_a_topic_with_the_name_of_the_iceberg_catalog_leaves_the_others_their_tables(tmp_path: Path) -> None:
    (tmp_path / CATALOG_FILE).mkdir()
    assert Lake(str(tmp_path), table_format=DELTA).format_name == DELTA


def test_a_time_that_no_table_can_have_and_a_log_that_is_gone_are_problems_of_their_topics(
    broker: Broker,
    cluster: Cluster,
    lake: Lake,
    tmp_path: Path,
    make_topic: Callable[..., str],
    produce: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    far, broken, good = (make_topic(f"{letter}-table") for letter in "abc")
    allow_any_time(broker, far)
    produce(far, [{"value": b"0", "timestamp": 1 << 62}])
    produce(broken, [b"0"])
    writer = BackgroundWriter(cluster, lake, batch_bytes=1 << 20)
    writer.write_all([broken])
    shutil.rmtree(tmp_path / broken / "_delta_log")
    produce(broken, [b"1"])
    produce(good, [b"0"])
    with caplog.at_level(logging.ERROR):
        writer.write_all([far, broken, good])
    told = [record.getMessage() for record in caplog.records if record.name == "penstock.lake"]
    assert len(told) == 2
    assert "a timestamp does not fit a table" in told[0]
    assert "cannot be read or changed" in told[1]
    assert offsets_in(table_of(lake, good)) == [0]


def test_records_of_a_topic_that_is_created_again_while_it_is_read_are_not_taken_for_its_own(
    broker: Broker,
    cluster: Cluster,
    lake: Lake,
    make_topic: Callable[..., str],
    produce: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = make_topic("table")
    produce(topic, [b"old"])
    writer = BackgroundWriter(cluster, lake, batch_bytes=1 << 20)
    writer.write_all([topic])
    produce(topic, [b"old"])

    def gather_late(*args: Any, **settings: Any) -> topic_rows.Gathered:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.delete_topics([topic])[topic].result(30)
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
        produce(topic, [b"new", b"new", b"new"])
        return topic_rows.gather(*args, **settings)

    monkeypatch.setattr(background_writer, "gather", gather_late)
    writer.write_all([topic])
    assert [row["value"] for row in rows_of(lake, topic)] == [b"old"]


def allow_any_time(broker: Broker, topic: str) -> None:
    entry = ConfigEntry(
        "message.timestamp.after.max.ms", str(2**63 - 1), incremental_operation=AlterConfigOpType.SET
    )
    wanted = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for done in admin.incremental_alter_configs([wanted]).values():
        done.result(30)


def test_settings_that_are_wrong_end_the_process_with_one_line(tmp_path: Path) -> None:
    settings = WriterSettings(
        bootstrap_servers="127.0.0.1:1",
        root=str(tmp_path),
        interval_ms=1,
        batch_bytes=1,
        client_config="/no/such/file",
    )
    ended = subprocess.run(
        [sys.executable, "-m", MODULE],
        input=msgspec.json.encode(settings) + b'\n["orders"]\n',
        capture_output=True,
        check=False,
        timeout=300,
    )
    [line] = ended.stderr.decode().splitlines()
    assert "no table is written at present" in line
    assert "/no/such/file" in line
    assert ended.returncode == 1
