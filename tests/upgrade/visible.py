"""Reads everything that clients can see of a cluster, as values that JSON can hold.

The JSON file of a fixture and the state of the opened fixture are both made by these functions. They pick the fields
that a later version must keep; a later version may add others.
"""

import base64
import hashlib
import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from tests.faults.waiting import PATIENCE_SECONDS, eventually
from tests.upgrade.brokers import Brokers

Json = dict[str, Any]
STATUS_TOPIC = "penstock.status"
"""Nodes write to it when they start and stop; all other topics are still until a client writes."""
SENT_BACK_QUEUE = "penstock.dead-letters"
"""The broker's own queue, which records the dead letters that were sent back."""


def cluster_id(brokers: Brokers) -> str:
    return str(brokers.ask("GET", "/v1/cluster")["cluster_id"])


# Topics


def topics(brokers: Brokers) -> Json:
    """Every topic but the internal ones: its id, the configs that were set, and each partition with every record. The
    list of topics has the status log only in older versions."""
    named = {one["name"] for one in brokers.ask("GET", "/v1/topics")["topics"]}
    listed = sorted(named | {STATUS_TOPIC})
    found = {name: _topic(brokers, f"/v1/topics/{quote(name)}") for name in listed}
    records = _records(brokers, {name: topic["partitions"] for name, topic in found.items()})
    for (name, partition), rows in records.items():
        found[name]["partitions"][partition]["records"] = rows
    return found


def _topic(brokers: Brokers, path: str) -> Json:
    told = brokers.ask("GET", path)
    return {
        "topic_id": told["topic_id"],
        "configs": {
            name: one["value"] for name, one in sorted(told["configs"].items()) if not one["inherited"]
        },
        "partitions": {
            str(one["partition"]): {
                "replicas": sorted(one["replicas"]),
                "start": one["earliest_offset"],
                "end": one["latest_offset"],
                "records": [],
            }
            for one in brokers.partitions(path)
        },
    }


def _records(brokers: Brokers, wanted: dict[str, Json]) -> dict[tuple[str, str], list[Json]]:
    """All records of these partitions, read with librdkafka."""
    found: dict[tuple[str, str], list[Json]] = {}
    ends = {(name, index): one["end"] for name, of in wanted.items() for index, one in of.items()}
    reader = Consumer(
        {
            "bootstrap.servers": brokers.servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
        }
    )
    try:
        reader.assign(
            [
                TopicPartition(name, int(index), one["start"])
                for name, of in wanted.items()
                for index, one in of.items()
            ]
        )
        open_ends = set(ends)
        while open_ends:
            message = reader.poll(PATIENCE_SECONDS)
            assert message is not None, f"no end of {sorted(open_ends)} within {PATIENCE_SECONDS} s"
            place = (str(message.topic()), str(message.partition()))
            problem = message.error()
            if problem is None:
                found.setdefault(place, []).append(_record(message))
            elif problem.code() != KafkaError._PARTITION_EOF:
                raise AssertionError(f"{place}: {problem}")
            elif message.offset() >= ends[place]:
                open_ends.discard(place)
    finally:
        reader.close()
    return found


def _record(message: Message) -> Json:
    kind, timestamp_ms = message.timestamp()
    told = message.headers() or []
    headers = told.items() if isinstance(told, dict) else told
    return {
        "offset": message.offset(),
        "term": message.leader_epoch(),
        "timestamp": [kind, timestamp_ms],
        "key": text(message.key()),
        "value": text(message.value()),
        "headers": [[name, text(value)] for name, value in headers],
    }


def digest(topic: Json, count: int) -> Json:
    """The id of a topic, and a checksum of the first `count` records of its first partition."""
    records = topic["partitions"]["0"]["records"][:count]
    checksum = hashlib.sha256(json.dumps(records).encode()).hexdigest()
    return {"topic_id": topic["topic_id"], "count": len(records), "sha256": checksum}


def text(data: bytes | str | None) -> str | None:
    """Readable where it can be: other bytes are in base64, behind a mark."""
    if data is None or isinstance(data, str):
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(data).decode()


def offset_at(brokers: Brokers, topic: str, partition: int, timestamp_ms: int) -> int:
    """The first offset whose record is not older."""
    place = TopicPartition(topic, partition)
    admin = AdminClient({"bootstrap.servers": brokers.servers})
    answer = admin.list_offsets({place: OffsetSpec.for_timestamp(timestamp_ms)})
    return int(answer[place].result(PATIENCE_SECONDS).offset)


# Groups and subscriptions


def groups(brokers: Brokers) -> Json:
    """Every consumer group, and what it has committed. (confluent-kafka reads the metadata of an offset wrongly.)"""
    listed = [one["group"] for one in brokers.ask("GET", "/v1/groups")["groups"] if one["type"] != "share"]
    told = [brokers.ask("GET", f"/v1/groups/{quote(name, safe='')}") for name in sorted(listed)]
    return {
        one["group"]: {
            "state": one["state"],
            "protocol_type": one["protocol_type"],
            "offsets": _rows(one["offsets"], ("topic", "partition", "committed_offset", "metadata")),
        }
        for one in told
    }


def subscriptions(brokers: Brokers) -> Json:
    listed = brokers.ask("GET", "/v1/subscriptions")["subscriptions"]
    told = [brokers.ask("GET", f"/v1/subscriptions/{quote(one['subscription'])}") for one in listed]
    return {
        one["subscription"]: {
            "topics": sorted(one["topics"]),
            "ttl_ms": one["ttl_ms"],
            "positions": _rows(one["positions"], ("topic", "partition", "offset", "done")),
        }
        for one in told
    }


# Queues


def queues(brokers: Brokers) -> Json:
    """Every queue: its settings, and each message that is not done."""
    _scheduled(brokers, SENT_BACK_QUEUE)  # it has to be loaded, too, before a list of dead letters is right
    return {one["queue"]: _queue(brokers, one["queue"]) for one in brokers.ask("GET", "/v1/queues")["queues"]}


def _queue(brokers: Brokers, name: str) -> Json:
    due = {
        (one["topic"], one["partition"], one["offset"]): one["due_ms"] for one in _scheduled(brokers, name)
    }
    messages = _rows(
        brokers.queue(name, "/peek?max_records=1000")["messages"],
        ("topic", "partition", "offset", "deliveries", "key"),
    )
    for one in messages:
        one["due_ms"] = due.get((one["topic"], one["partition"], one["offset"]))
    places = _rows(
        brokers.partitions(f"/v1/queues/{quote(name)}"),
        ("topic", "partition", "end_offset", "undone", "dying"),
    )
    letters = brokers.queue(name, "/dead-letters?max_records=1000")["dead_letters"]
    fields = ("topic", "partition", "offset", "reason", "from_topic", "from_partition", "from_offset")
    return {
        "settings": brokers.queue(name)["settings"],
        "configs": _group_configs(brokers, name),
        "partitions": places,
        "undone": messages,
        "dead_letters": _rows(letters, (*fields, "deliveries", "died_at_ms")),
    }


def _scheduled(brokers: Brokers, name: str) -> list[Json]:
    """After a restart a queue reads its messages again; its numbers are right when it has read them all."""
    told: Json = {}

    def has_read_all() -> bool:
        told.update(brokers.queue(name, "/scheduled?max_records=1000"))
        return all(one["unread"] == 0 for one in told["partitions"])

    eventually(has_read_all, f"{name} has read its messages")
    messages: list[Json] = told["messages"]
    return messages


def _group_configs(brokers: Brokers, group: str) -> Json:
    """Those that were set."""
    resource = ConfigResource(ResourceType.GROUP, group)
    admin = AdminClient({"bootstrap.servers": brokers.servers})
    entries = admin.describe_configs([resource])[resource].result(PATIENCE_SECONDS)
    return {name: one.value for name, one in sorted(entries.items()) if not one.is_default}


def _rows(rows: Iterable[Json], fields: tuple[str, ...]) -> list[Json]:
    picked = [{field: row[field] for field in fields} for row in rows]
    return sorted(picked, key=lambda row: (row["topic"], row["partition"], row.get("offset", 0)))
