"""The state topic's records, byte by byte."""

import struct
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import UnknownFormat
from penstock.queue.state_records import (
    FENCE_SUFFIX,
    HEAD_SUFFIX,
    DelayedRun,
    Head,
    StateKey,
    chunk_of,
    chunk_suffix,
    decode_chunk,
    decode_head,
    decode_key,
    encode_chunk,
    encode_head,
    encode_key,
)
from penstock.queue.states import (
    AVAILABLE,
    BYTE,
    CHUNK_SIZE,
    DEFERRED,
    DONE,
    DYING,
    LEASED,
    REJECTED,
    UNREAD,
    runs,
)
from penstock.types import Term

TOPIC = UUID("12345678-1234-5678-1234-567812345678")
STATES = st.sampled_from([UNREAD, AVAILABLE, LEASED, DYING, REJECTED, DONE, DONE])


@st.composite
def cells(draw: st.DrawFn) -> tuple[bytearray, bytearray]:
    """States and deliveries of a chunk: runs of any length, from one large one to thousands of single ones."""
    pattern = draw(st.lists(st.tuples(STATES, st.integers(1, 255), st.integers(1, 900)), min_size=1))
    shortest = draw(st.booleans())
    state, deliveries = bytearray(), bytearray()
    while len(state) < CHUNK_SIZE:
        for value, count, length in pattern:
            length = 1 if shortest else length
            state += BYTE[value] * length
            deliveries += BYTE[0 if value in (AVAILABLE, DONE) else count] * length
    return state[:CHUNK_SIZE], deliveries[:CHUNK_SIZE]


def test_keys_are_encoded_as_described() -> None:
    prefix = struct.pack(">hh", 100, 2) + "ö".encode() + TOPIC.bytes + struct.pack(">i", 3)
    assert encode_key("ö", TOPIC, 3, HEAD_SUFFIX) == prefix + b"\0"
    assert encode_key("ö", TOPIC, 3, chunk_suffix(5)) == prefix + b"\1" + struct.pack(">q", 5)
    assert encode_key("ö", TOPIC, 3, FENCE_SUFFIX) == prefix + b"\2"


def test_heads_and_chunks_are_encoded_as_described() -> None:
    assert encode_head(Head(Term(7), 9)) == struct.pack(">hiq", 1, 7, 9)
    state = bytearray(BYTE[AVAILABLE] * CHUNK_SIZE)
    deliveries = bytearray(CHUNK_SIZE)
    assert encode_chunk(state, deliveries) is None
    state[10:30] = BYTE[DONE] * 20
    state[100:102] = BYTE[REJECTED] * 2
    deliveries[90:102] = BYTE[3] * 12
    expected = struct.pack(">hBHHHBH", 1, 0, 1, 10, 20, 0, 2)
    expected += struct.pack(">HHBBHHBB", 90, 10, 3, 0, 100, 2, 3, 1)
    assert encode_chunk(state, deliveries) == expected
    assert encode_chunk(state, deliveries, since=102) is None


def test_retry_delays_are_encoded_as_described_and_bounded() -> None:
    state, deliveries = bytearray(BYTE[DEFERRED] * CHUNK_SIZE), bytearray(CHUNK_SIZE)
    deliveries[7:9] = BYTE[2] * 2
    undone = struct.pack(">hBHBHHHBB", 2, 0, 0, 0, 1, 7, 2, 2, 0)
    value = encode_chunk(state, deliveries, delayed=[DelayedRun(7, 2, 12_345)])
    assert value == undone + struct.pack(">HHHq", 1, 7, 2, 12_345)
    assert decode_chunk(value).delayed == [(7, 2, 12_345)]
    deliveries[:] = BYTE[1] * CHUNK_SIZE
    every = [DelayedRun(index, 1, index) for index in range(CHUNK_SIZE)]
    longest = encode_chunk(state, deliveries, delayed=every)
    assert longest is not None
    assert len(longest) <= 17_130
    assert decode_chunk(longest).delayed == every[:1_000]


@given(st.text(max_size=20), st.uuids(), st.integers(0, 2**31 - 1), st.none() | st.integers(0, 2**51))
def test_keys_are_read_as_they_were_written(
    group_id: str, topic_id: UUID, partition: int, number: int | None
) -> None:
    suffix = HEAD_SUFFIX if number is None else chunk_suffix(number)
    key = decode_key(encode_key(group_id, topic_id, partition, suffix))
    assert key == StateKey(group_id, topic_id, partition, suffix)
    assert chunk_of(key.suffix) == number


@given(cells(), st.integers(0, CHUNK_SIZE - 1))
@settings(max_examples=60, deadline=None)
def test_a_chunk_is_read_as_it_was_written(chunk: tuple[bytearray, bytearray], since: int) -> None:
    state, deliveries = chunk
    value = encode_chunk(state, deliveries, since)
    if value is None:
        assert DONE not in state[since:]
        return
    assert len(value) <= 5128
    stored = decode_chunk(value)
    for index in range(since, CHUNK_SIZE):
        kept = state[index] if state[index] in (DONE, REJECTED) else UNREAD
        assert stored.state[index] == kept
        if state[index] != DONE:
            assert stored.deliveries[index] == deliveries[index]
    assert not any(stored.state[:since])


@given(cells(), st.data())
@settings(max_examples=30, deadline=None)
def test_a_truncated_or_extended_chunk_is_refused(
    chunk: tuple[bytearray, bytearray], data: st.DataObject
) -> None:
    value = encode_chunk(*chunk) or encode_head(Head(Term(1), 1))
    decode = decode_head if len(value) == 14 else decode_chunk
    length = data.draw(st.integers(0, len(value) - 1))
    for wrong in (value[:length], value + b"\0"):
        with pytest.raises(UnknownFormat, match="start the version that wrote it"):
            decode(wrong)


@pytest.mark.parametrize(
    "key",
    [
        b"",
        struct.pack(">hh", 0, 0) + bytes(21),
        struct.pack(">hh", 100, -1) + bytes(21),
        struct.pack(">hh", 100, 1) + b"\xff" + bytes(21),
        struct.pack(">hh", 100, 0) + bytes(20),
        struct.pack(">hh", 100, 0) + bytes(20) + b"\3",
        struct.pack(">hh", 100, 0) + bytes(20) + b"\1" + struct.pack(">q", -1),
    ],
)
def test_unknown_keys_are_refused(key: bytes) -> None:
    with pytest.raises(UnknownFormat):
        decode_key(key)


@pytest.mark.parametrize(
    "value",
    [
        struct.pack(">hBHBH", 2, 0, 0, 0, 0),
        struct.pack(">hBHBH", 1, 2, 0, 0, 0),
        struct.pack(">hBHBH", 1, 0, 0, 3, 0),
        struct.pack(">hBHHHBH", 1, 0, 1, 4000, 97, 0, 0),
        struct.pack(">hBHHHBH", 1, 0, 1, 5, 0, 0, 0),
        struct.pack(">hBHHHHHBH", 1, 0, 2, 5, 5, 9, 5, 0, 0),
        struct.pack(">hBHBHHHBB", 1, 0, 0, 0, 1, 5, 1, 0, 0),
        struct.pack(">hBHBHHHBB", 1, 0, 0, 0, 1, 5, 1, 1, 2),
        struct.pack(">hBHHHBHHHBB", 1, 0, 1, 0, 9, 0, 1, 5, 1, 1, 1),
    ],
    ids=["version", "form", "form", "beyond", "empty", "overlap", "undelivered", "flag", "contradiction"],
)
def test_an_invalid_chunk_is_refused(value: bytes) -> None:
    with pytest.raises(UnknownFormat):
        decode_chunk(value)


def test_an_invalid_head_is_refused() -> None:
    for value in (struct.pack(">hiq", 2, 1, 1), struct.pack(">hiq", 1, 1, -1), b"", bytes(13)):
        with pytest.raises(UnknownFormat):
            decode_head(value)


@given(st.binary(max_size=80))
def test_any_bytes_decode_or_raise_one_kind_of_error(data: bytes) -> None:
    for decode in (decode_key, decode_head, decode_chunk):
        try:
            decode(data)
        except UnknownFormat:
            continue


@given(st.binary(min_size=1, max_size=300), st.integers(0, 299), st.integers(0, 299))
def test_runs_cover_a_range_and_are_maximal(data: bytes, start: int, stop: int) -> None:
    data = bytes(each % 3 for each in data)
    stop = min(stop, len(data))
    found = list(runs(bytearray(data), start, stop))
    assert b"".join(BYTE[value] * (end - first) for first, end, value in found) == data[start:stop]
    assert all(a[2] != b[2] and a[1] == b[0] for a, b in pairwise(found))
