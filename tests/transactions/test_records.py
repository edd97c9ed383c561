"""The transaction topic's bytes: Kafka's layout, and all other bytes are refused."""

import contextlib
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UnknownFormat
from penstock.transactions import Dialect, TransactionState
from penstock.transactions.records import decode_key, decode_value, encode_key, encode_value
from penstock.transactions.states import STORED
from penstock.transactions.transaction import Transaction
from penstock.types import TopicPartition
from tests.transactions.transaction_harness import Client, TransactionHarness

INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
PARTITIONS = st.frozensets(st.builds(TopicPartition, st.text(max_size=20), INT32), max_size=5)
FOREIGN_TAGS = st.dictionaries(
    st.integers(3, 999) | st.integers(1003, 2**31), st.binary(max_size=9), max_size=2
)
TRANSACTIONS = st.builds(
    Transaction,
    producer_id=INT64,
    epoch=INT16,
    timeout_ms=INT32,
    state=st.sampled_from(sorted(STORED - {TransactionState.EMPTY})),
    partitions=PARTITIONS,
    updated_ms=INT64,
    start_ms=INT64,
    previous_producer_id=INT64,
    next_producer_id=INT64,
    last_epoch=INT16,
    dialect=INT16,
    owner=st.text(max_size=5),
    version=INT64,
    other_tags=FOREIGN_TAGS.map(lambda tags: tuple(sorted(tags.items()))),
)
COMMITTING = Transaction(
    producer_id=7,
    epoch=2,
    timeout_ms=60_000,
    state=TransactionState.PREPARE_COMMIT,
    partitions=frozenset({TopicPartition("b", 1), TopicPartition("a", 5), TopicPartition("a", 2)}),
    updated_ms=11,
    start_ms=10,
    previous_producer_id=7,
    last_epoch=1,
    dialect=Dialect.V2,
)
HEAD = struct.pack(">qhib", 7, 2, 60_000, 2)
TIMES = struct.pack(">qq", 11, 10)
COMPACT_TOPICS = (
    b"\x03"
    + b"\x02a\x03"
    + struct.pack(">ii", 2, 5)
    + b"\x00"
    + b"\x02b\x02"
    + struct.pack(">i", 1)
    + b"\x00"
)


def test_a_key_has_kafkas_layout() -> None:
    assert encode_key("pay") == b"\x00\x00" + b"\x00\x03pay"
    assert decode_key(encode_key("pay")) == "pay"


def test_a_value_has_kafkas_layout_with_one_tag_of_our_own() -> None:
    tags = (
        b"\x03"
        + b"\x00\x08"
        + struct.pack(">q", 7)
        + b"\x02\x02"
        + struct.pack(">h", 2)
        + b"\xe8\x07\x02"
        + struct.pack(">h", 1)
    )
    assert encode_value(COMMITTING) == b"\x00\x01" + HEAD + COMPACT_TOPICS + TIMES + tags


def test_an_id_without_a_transaction_has_no_topics() -> None:
    empty = Transaction(
        producer_id=7, epoch=0, timeout_ms=60_000, state=TransactionState.EMPTY, updated_ms=11
    )
    assert encode_value(empty) == (
        b"\x00\x01" + struct.pack(">qhib", 7, 0, 60_000, 0) + b"\x00" + struct.pack(">qq", 11, -1) + b"\x00"
    )


def test_a_complete_transaction_has_an_empty_list_of_topics() -> None:
    done = COMMITTING.completed(12)
    assert encode_value(done)[2 + len(HEAD) :][:1] == b"\x01"
    assert decode_value(encode_value(done)) == done


def test_kafkas_older_values_are_read() -> None:
    topics = (
        struct.pack(">i", 2)
        + (b"\x00\x01a" + struct.pack(">iii", 2, 2, 5))
        + (b"\x00\x01b" + struct.pack(">ii", 1, 1))
    )
    value = decode_value(b"\x00\x00" + HEAD + topics + TIMES)
    assert value.partitions == COMMITTING.partitions
    assert (value.producer, value.state, value.start_ms) == (COMMITTING.producer, COMMITTING.state, 10)
    assert (value.previous_producer_id, value.next_producer_id, value.last_epoch) == (-1, -1, -1)


def test_an_older_value_without_topics_is_read() -> None:
    head = struct.pack(">qhib", 7, 2, 60_000, 0)
    value = decode_value(b"\x00\x00" + head + struct.pack(">i", -1) + TIMES)
    assert value.partitions == frozenset()


@given(TRANSACTIONS)
def test_every_value_is_read_as_it_was_written(value: Transaction) -> None:
    assert decode_value(encode_value(value)) == value


def test_an_owner_that_is_no_text_is_refused() -> None:
    data = encode_value(msgspec.structs.replace(COMMITTING, owner="x"))
    with pytest.raises(UnknownFormat, match="not UTF-8"):
        decode_value(data.replace(b"\x02x", b"\x02\x80").replace(b"\x01x", b"\x01\x80"))


def test_tags_of_later_versions_are_kept_through_transitions() -> None:
    """KIP-939 has the tag 3."""
    data = encode_value(COMMITTING)
    at = len(b"\x00\x01" + HEAD + COMPACT_TOPICS + TIMES)
    foreign = data[:at] + b"\x02" + b"\x00\x08" + struct.pack(">q", 7) + b"\x03\x02" + struct.pack(">h", 9)
    value = decode_value(foreign)
    assert value.other_tags == ((3, struct.pack(">h", 9)),)
    assert decode_value(encode_value(value.completed(12))).other_tags == value.other_tags


@pytest.mark.parametrize("state", [6, 7, 8, -1])
def test_a_state_that_is_never_stored_is_refused(state: int) -> None:
    head = struct.pack(">qhib", 7, 2, 60_000, state)
    with pytest.raises(UnknownFormat, match="state"):
        decode_value(b"\x00\x01" + head + b"\x01" + TIMES + b"\x00")


def test_versions_of_the_future_are_refused() -> None:
    with pytest.raises(UnknownFormat, match="the transaction topic has value version 2"):
        decode_value(b"\x00\x02" + encode_value(COMMITTING)[2:])
    with pytest.raises(UnknownFormat, match="key version 1"):
        decode_key(b"\x00\x01" + encode_key("pay")[2:])


@given(st.binary(max_size=60), st.sampled_from([b"", b"\x00\x00", b"\x00\x01", b"\x00\x01" + HEAD]))
def test_any_bytes_are_read_or_refused(data: bytes, head: bytes) -> None:
    for decode in (decode_key, decode_value):
        with contextlib.suppress(UnknownFormat):
            decode(head + data)


@given(st.integers(0, 80))
def test_a_value_that_is_cut_off_is_refused(size: int) -> None:
    data = encode_value(COMMITTING)
    with pytest.raises(UnknownFormat):
        decode_value(data[: min(size, len(data) - 1)])


def test_a_deleted_key_is_forgotten_by_the_replay() -> None:
    harness = TransactionHarness()
    Client(harness).inits()
    harness.durable.append((encode_key("payments"), None))
    assert harness.restarted().coordinator.describe("payments") is None
