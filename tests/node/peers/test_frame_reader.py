"""Cutting a stream into frames, however it arrives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolViolation
from penstock.node.peers.frames import SCRATCH_SIZE, WHOLE_UP_TO, FrameReader

LIMIT = 8 * 1024 * 1024


def reader() -> FrameReader:
    return FrameReader(memoryview(bytearray(SCRATCH_SIZE)), LIMIT)


def feed(frames: FrameReader, stream: bytes, portions: list[int]) -> list[bytes]:
    """The stream as a socket might hand it over: in portions, none larger than the place for it."""
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
)
def test_frames_come_out_as_they_went_in(sizes: list[int], portions: list[int]) -> None:
    frames = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
    assert feed(reader(), stream_of(frames), portions) == frames


def test_single_bytes_are_enough() -> None:
    frames = [b"a", b"bc" * 50, b"d"]
    assert feed(reader(), stream_of(frames), [1]) == frames


def test_what_came_before_there_was_a_reader_is_taken_too() -> None:
    frames = [b"a" * 10, b"b" * 400_000]
    stream = stream_of(frames)
    frame_reader = reader()
    found = frame_reader.take(stream[:300_000])
    assert [bytes(frame) for frame in found] + feed(frame_reader, stream[300_000:], [10**9]) == frames


@pytest.mark.parametrize("length", [0, LIMIT + 1, 2**32 - 1])
def test_lengths_that_cannot_be_are_refused(length: int) -> None:
    with pytest.raises(ProtocolViolation, match=f"a frame of {length} bytes"):
        feed(reader(), length.to_bytes(4, "big"), [4])


def test_a_large_announcement_costs_little_until_bytes_come() -> None:
    frames = reader()
    feed(frames, LIMIT.to_bytes(4, "big") + b"x", [10**9])
    assert len(frames.buffer()) < WHOLE_UP_TO
