"""The frame reader: a stream cut anywhere gives the same frames, and an announced length costs nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolViolation
from penstock.node.frames import FIRST_BUFFER, SCRATCH_SIZE, FrameReader
from penstock.node.peers import frames as between_nodes

LIMIT = 8 * 1024 * 1024


def reader(first_buffer: int = FIRST_BUFFER) -> FrameReader:
    return FrameReader(memoryview(bytearray(SCRATCH_SIZE)), LIMIT, first_buffer)


def feed(frames: FrameReader, stream: bytes, portions: list[int]) -> list[bytes]:
    """The stream as a socket might deliver it: in portions, none larger than the buffer."""
    found: list[bytes] = []
    position, turn = 0, 0
    while position < len(stream):
        place = frames.buffer()
        portion = stream[position : position + min(len(place), portions[turn % len(portions)])]
        place[: len(portion)] = portion
        found += [bytes(frame) for frame in frames.filled(len(portion))]
        position += len(portion)
        turn += 1
    return found


def stream_of(frames: list[bytes]) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


@given(
    sizes=st.lists(st.sampled_from([1, 2, 5, 300, 70_000, 300_000, 2_500_000]), min_size=1, max_size=6),
    portions=st.lists(st.sampled_from([1000, 4096, 65_536, 262_144, 10**9]), min_size=1, max_size=4),
    first_buffer=st.sampled_from([FIRST_BUFFER, between_nodes.FIRST_BUFFER]),
)
def test_frames_are_read_unchanged(sizes: list[int], portions: list[int], first_buffer: int) -> None:
    frames = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
    assert feed(reader(first_buffer), stream_of(frames), portions) == frames


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=8), st.integers(1, 700))
def test_a_stream_cut_anywhere_gives_the_same_frames(payloads: list[bytes], cut: int) -> None:
    assert feed(reader(), stream_of(payloads), [cut]) == payloads


def test_single_bytes_are_enough() -> None:
    frames = [b"a", b"bc" * 50, b"d"]
    assert feed(reader(), stream_of(frames), [1]) == frames


def test_bytes_received_before_the_reader_existed_are_read_too() -> None:
    frames = [b"a" * 10, b"b" * 400_000]
    stream = stream_of(frames)
    frame_reader = reader()
    found = frame_reader.take(stream[:300_000])
    assert [bytes(frame) for frame in found] + feed(frame_reader, stream[300_000:], [10**9]) == frames


@pytest.mark.parametrize("length", [0, LIMIT + 1, 2**31, 2**32 - 1])
def test_an_invalid_length_is_a_violation_that_names_the_expected_range(length: int) -> None:
    with pytest.raises(ProtocolViolation, match=f"frame length {length}: expected 1 to {LIMIT} bytes"):
        feed(reader(), length.to_bytes(4, "big"), [4])


@pytest.mark.parametrize("first_buffer", [FIRST_BUFFER, between_nodes.FIRST_BUFFER])
def test_an_announced_length_costs_the_first_buffer_until_bytes_arrive(first_buffer: int) -> None:
    frames = reader(first_buffer)
    assert feed(frames, LIMIT.to_bytes(4, "big") + b"x", [10**9]) == []
    assert frames.waiting_bytes == first_buffer


def test_a_reader_between_frames_holds_no_buffer() -> None:
    frames = reader()
    assert feed(frames, stream_of([b"x" * 1000]), [500]) == [b"x" * 1000]
    assert frames.waiting_bytes == 0
