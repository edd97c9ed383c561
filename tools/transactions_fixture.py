"""The transactions of an upgrade fixture: one that was committed, one that was aborted, one that is open; each with an
offset of a group."""

from typing import Any

from penstock.errors import ErrorCode
from tests.faults.waiting import eventually
from tests.kafka.raw import RawClient
from tests.kafka.requests import create
from tests.kafka.transactional_producer import TransactionalProducer, persist
from tests.upgrade.transactions import GROUP, IDS, OTHER, TOPIC, describe, everything

TIMEOUT_MS = 30_000
"""Of the open transaction: a fixture is older when it is opened, so that its coordinator aborts it at once."""
COMPLETE = ("CompleteCommit", "CompleteAbort")


def fill(client: RawClient) -> dict[str, Any]:
    """Returns what clients see."""
    for topic in (TOPIC, OTHER):
        create(client, topic, replicas=1, retention_ms="-1")
    for number, name in enumerate(IDS, 1):
        producer = TransactionalProducer(client, name)
        persist(producer.find_coordinator)
        persist(lambda one=producer: one.init(timeout_ms=TIMEOUT_MS))  # type: ignore[misc]
        for topic in (TOPIC, OTHER):
            producer.write(topic, f"{name} {number}", f"{name} {number + 1}")
        producer.commit_offset(GROUP, TOPIC, number)
        if name != "open":
            producer.finish(commit=name == "committed")
            eventually(lambda one=name: describe(client, one)["state"] in COMPLETE, name)  # type: ignore[misc]
    seen = everything(client)
    check(seen)
    return seen


def check(seen: dict[str, Any]) -> None:
    """The fixture has what it is for."""
    states = [one["state"] for one in seen["transactions"].values()]
    assert states == ["CompleteCommit", "CompleteAbort", "Ongoing"]
    assert seen["offset"][0] == ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert seen["topics"][TOPIC] == {"committed": ["committed 1", "committed 2"], "last_stable": 6}
