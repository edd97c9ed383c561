"""Refuses records whose headers ask for something that their topic does not do: a message id on a topic that does not
deduplicate, a delay after which retention may have deleted the record. The broker does not open the records of Kafka
clients when it stores them, so it cannot refuse those."""

from collections.abc import Sequence

from penstock.batch import Record
from penstock.config import TopicConfig
from penstock.node.dedup.message_ids import MESSAGE_ID
from penstock.node.queues.delivery_headers import PREFIX, times_of
from penstock.web.api.problems import Problem

DEDUP_WINDOW = "dedup.window.ms"
KEEP_UNDONE = "penstock.retention.keep.undone"
_ID, _PREFIX = MESSAGE_ID.decode(), PREFIX.decode()


def check_headers(records: Sequence[Record], topic: str, config: TopicConfig, field: str) -> None:
    """`field` names a record in the request, with its number as `{}`."""
    if config.dedup_window_ms > 0 and not config.may_delete_undone:
        return
    for number, record in enumerate(records):
        if any(name.startswith(_PREFIX) for name, _ in record.headers):
            _check_id(record, topic, config, field.format(number))
            _check_delay(record, topic, config, field.format(number))


def _check_id(record: Record, topic: str, config: TopicConfig, where: str) -> None:
    if config.dedup_window_ms == 0 and any(name == _ID for name, _ in record.headers):
        message = (
            f"{topic} does not deduplicate, so a message id has no effect: set {DEDUP_WINDOW} on the topic "
            f"(`penstock topics alter {topic} --set {DEDUP_WINDOW}=600000`), or leave the id out"
        )
        raise Problem(409, "no_dedup_window", message, f"{where}message_id")


def _check_delay(record: Record, topic: str, config: TopicConfig, where: str) -> None:
    due_ms = times_of(record).due_ms
    if due_ms is None or not config.may_delete_undone or config.retention_ms < 0:
        return
    if due_ms - record.timestamp > config.retention_ms:
        message = (
            f"the message is due after retention.ms of {topic} ({config.retention_ms}), when it may be deleted: "
            f"set {KEEP_UNDONE}=true on the topic, or a longer retention.ms"
        )
        raise Problem(409, "delay_beyond_retention", message, f"{where}delay_ms")
