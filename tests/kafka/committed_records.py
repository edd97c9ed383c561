"""The records that a reader of committed records sees, by the rules that Kafka's consumers follow."""

from penstock.batch import iter_headers, read_records
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages import fetch
from tests.kafka.raw import RawClient
from tests.kafka.requests import ask, fetch_request, until_served

READ_COMMITTED = 1


def committed_values(client: RawClient, topic: str) -> list[str]:
    """The values of partition 0, up to the last stable offset."""
    values: list[str] = []
    offset = 0
    while (row := _fetch(client, topic, offset)).records:
        more, offset = _committed(row)
        values += more
    return values


def last_stable_offset(client: RawClient, topic: str) -> int:
    return _fetch(client, topic, 0).last_stable_offset


def _fetch(client: RawClient, topic: str, offset: int) -> fetch.PartitionData:
    request = fetch_request(topic, offset)
    request.isolation_level, request.max_bytes = READ_COMMITTED, 1 << 20
    row = until_served(
        lambda: ask(client, ApiKey.FETCH, 12, request, fetch.FetchResponse).responses[0].partitions[0]
    )
    assert row.error_code == ErrorCode.NONE
    return row


def _committed(row: fetch.PartitionData) -> tuple[list[str], int]:
    """The committed values of one response, and the next offset to fetch."""
    aborted = sorted((one.first_offset, one.producer_id) for one in row.aborted_transactions or [])
    data, ignored = bytes(row.records or b""), set[int]()
    values: list[str] = []
    next_offset = 0
    for position, header in iter_headers(data):
        next_offset = header.next_offset
        while aborted and aborted[0][0] <= header.last_offset:
            ignored.add(aborted.pop(0)[1])
        if header.control:
            ignored.discard(header.producer_id)
        elif not (header.transactional and header.producer_id in ignored):
            values += [bytes(record.value or b"").decode() for record in read_records(data, position)]
    return values, next_offset
