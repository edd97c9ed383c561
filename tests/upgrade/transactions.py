"""A node with transactions, and all that clients and operators can see of them."""

from typing import Any

from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages import describe_transactions as describing
from penstock.kafka.wire.messages import offset_fetch as fetching
from tests.kafka.committed_records import committed_values, last_stable_offset
from tests.kafka.raw import RawClient
from tests.kafka.requests import ask

Json = dict[str, Any]
TRANSACTIONS = "transactions"
"""The name of its fixture."""
TOPIC, OTHER, GROUP = "ledger", "accounts", "auditors"
IDS = ("committed", "aborted", "open")


def describe(client: RawClient, transactional_id: str) -> Json:
    request = describing.DescribeTransactionsRequest(transactional_ids=[transactional_id])
    response = describing.DescribeTransactionsResponse
    [one] = ask(client, ApiKey.DESCRIBE_TRANSACTIONS, 0, request, response).transaction_states
    return {
        "state": one.transaction_state,
        "producer_id": one.producer_id,
        "epoch": one.producer_epoch,
        "timeout_ms": one.transaction_timeout_ms,
        "start_ms": one.transaction_start_time_ms,
        "topics": sorted(topic.topic for topic in one.topics),
    }


def stable_offset(client: RawClient) -> list[int]:
    """What a consumer that takes over is told of the group's place in the topic: an error code and the offset."""
    wanted = fetching.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])
    groups = [fetching.OffsetFetchRequestGroup(group_id=GROUP, topics=[wanted])]
    request = fetching.OffsetFetchRequest(groups=groups, require_stable=True)
    answer = ask(client, ApiKey.OFFSET_FETCH, 8, request, fetching.OffsetFetchResponse)
    row = answer.groups[0].topics[0].partitions[0]
    return [int(row.error_code), row.committed_offset]


def everything(client: RawClient) -> Json:
    return {
        "transactions": {name: describe(client, name) for name in IDS},
        "offset": stable_offset(client),
        "topics": {
            topic: {
                "committed": committed_values(client, topic),
                "last_stable": last_stable_offset(client, topic),
            }
            for topic in (TOPIC, OTHER)
        },
    }
