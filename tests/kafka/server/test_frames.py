"""The frame reader: streams cut anywhere give the same frames, and a peer's announcement costs nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolViolation
from penstock.kafka.server.frames import GROW_FROM, SCRATCH_SIZE, FrameReader


def feed(reader: FrameReader, stream: bytes, cut: int) -> list[bytes]:
    frames = []
    position = 0
    while position < len(stream):
        room = reader.buffer()
        piece = stream[position : position + min(cut, len(room))]
        room[: len(piece)] = piece
        frames += reader.filled(len(piece))
        position += len(piece)
    return [bytes(frame) for frame in frames]


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def new_reader(max_bytes: int = 10_000_000) -> FrameReader:
    return FrameReader(memoryview(bytearray(SCRATCH_SIZE)), max_bytes)


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=8), st.integers(1, 700))
def test_a_stream_cut_anywhere_gives_the_same_frames(payloads: list[bytes], cut: int) -> None:
    stream = b"".join(framed(payload) for payload in payloads)
    assert feed(new_reader(), stream, cut) == payloads


@pytest.mark.parametrize("size", [SCRATCH_SIZE, 1_048_576, 3_000_001])
def test_large_frames_arrive_whole_and_the_next_one_too(size: int) -> None:
    payloads = [bytes(range(256)) * (size // 256) + b"x", b"after"]
    stream = b"".join(framed(payload) for payload in payloads)
    assert feed(new_reader(), stream, 100_000) == payloads


@pytest.mark.parametrize("length", [0, -1, -(2**31), 2**31 - 1, 10_000_001])
def test_an_impossible_length_is_a_violation_that_says_what_was_expected(length: int) -> None:
    with pytest.raises(ProtocolViolation, match=f"frame length {length}: expected 1 to 10000000"):
        feed(new_reader(), length.to_bytes(4, "big", signed=True), 4)


def test_an_announced_length_costs_nothing_until_the_bytes_arrive() -> None:
    reader = new_reader()
    assert feed(reader, (9_999_999).to_bytes(4, "big") + b"half", 8) == []
    assert reader.waiting_bytes <= GROW_FROM


def test_an_idle_connection_holds_no_buffer() -> None:
    reader = new_reader()
    assert feed(reader, framed(b"x" * 1000), 500) == [b"x" * 1000]
    assert reader.waiting_bytes == 0
