import random
import struct
import tracemalloc
from contextlib import suppress

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.batch import compress, decompress
from penstock.batch.compression import GZIP, LZ4, NONE, SNAPPY, XERIAL_HEADER, ZSTD
from penstock.errors import BatchError, ErrorCode

ALL = [NONE, GZIP, SNAPPY, LZ4, ZSTD]
COMPRESSING = [GZIP, SNAPPY, LZ4, ZSTD]
PAYLOADS = {
    "empty": b"",
    "one byte": b"x",
    "text": b"the same again and again " * 5000,
    "noise": random.Random(1).randbytes(100_000),
    "zeros": bytes(2_000_000),
}


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS.keys())
@pytest.mark.parametrize("codec", ALL)
def test_compressed_data_round_trips_at_a_limit_of_its_exact_size(codec, payload):
    assert decompress(codec, compress(codec, payload), max_bytes=len(payload)) == payload


@pytest.mark.parametrize("payload", list(PAYLOADS.values())[1:], ids=list(PAYLOADS)[1:])
@pytest.mark.parametrize("codec", ALL)
def test_one_byte_more_than_the_limit_is_refused(codec, payload):
    with pytest.raises(BatchError, match=f"at most {len(payload) - 1} bytes") as caught:
        decompress(codec, compress(codec, payload), max_bytes=len(payload) - 1)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(ALL), st.binary(max_size=300), st.integers(1, 400))
def test_any_bytes_round_trip(codec, piece, times):
    payload = piece * times
    for data in (payload, bytearray(payload), memoryview(payload)):
        packed = compress(codec, data)
        assert decompress(codec, packed, max_bytes=200_000) == payload
        assert decompress(codec, memoryview(packed), max_bytes=200_000) == payload


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_decompression_bomb_takes_no_more_memory_than_the_limit(codec):
    bomb = compress(codec, bytes(50_000_000))
    limit = 1_000_000
    tracemalloc.start()
    try:
        with pytest.raises(BatchError) as caught:
            decompress(codec, bomb, max_bytes=limit)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    # The xerial block list of a snappy bomb is as long as the bomb; everything else is one buffer.
    assert peak < 2 * limit


def test_stated_sizes_are_hints_and_never_trusted():
    lying_gzip = bytearray(compress(GZIP, b"abc" * 100))
    lying_gzip[-4:] = struct.pack("<I", 2**32 - 1)
    with pytest.raises(BatchError):
        decompress(GZIP, lying_gzip, max_bytes=10_000)
    with pytest.raises(BatchError, match="at most 10000 bytes"):
        decompress(SNAPPY, b"\xff\xff\xff\xff\x0f" + b"\0" * 20, max_bytes=10_000)


def test_members_and_frames_may_follow_one_another():
    for codec in (GZIP, LZ4, ZSTD):
        packed = compress(codec, b"first " * 100) + compress(codec, b"second " * 1000)
        assert decompress(codec, packed, max_bytes=7600) == b"first " * 100 + b"second " * 1000


def test_snappy_is_read_raw_as_librdkafka_sends_it():
    for payload in PAYLOADS.values():
        raw = bytes(cramjam.snappy.compress_raw(payload))
        assert decompress(SNAPPY, raw, max_bytes=len(payload)) == payload


def test_snappy_is_written_in_blocks_of_32_kib_as_java_does():
    packed = compress(SNAPPY, b"ab" * 40_000)
    assert packed.startswith(XERIAL_HEADER)
    sizes, pos = [], len(XERIAL_HEADER)
    while pos < len(packed):
        (length,) = struct.unpack_from(">i", packed, pos)
        sizes.append(len(cramjam.snappy.decompress_raw(packed[pos + 4 : pos + 4 + length])))
        pos += 4 + length
    assert sizes == [32768, 32768, 14464]


@pytest.mark.parametrize(
    ("framed", "named"),
    [
        (XERIAL_HEADER[:15], "xerial header"),
        (XERIAL_HEADER[:8] + struct.pack(">ii", 2, 2), "xerial header 0000000200000002"),
        (XERIAL_HEADER + b"\0\0", "2 bytes after the last xerial block"),
        (XERIAL_HEADER + struct.pack(">i", 0), "xerial block size=0: expected 1 .. 0"),
        (XERIAL_HEADER + struct.pack(">i", -5) + b"12345", "xerial block size=-5: expected 1 .. 5"),
        (XERIAL_HEADER + struct.pack(">i", 6) + b"12345", "xerial block size=6: expected 1 .. 5"),
    ],
)
def test_broken_xerial_framing_is_refused(framed, named):
    with pytest.raises(BatchError) as caught:
        decompress(SNAPPY, framed, max_bytes=1000)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert "compression=snappy" in caught.value.message
    assert named in caught.value.message


def test_lz4_blocks_are_independent_because_java_reads_no_linked_ones():
    packed = compress(LZ4, b"ab" * 100_000)
    assert packed[:4] == b"\x04\x22\x4d\x18"
    assert packed[4] & 0x20


@pytest.mark.parametrize(("codec", "fast", "small"), [(GZIP, 1, 9), (LZ4, 1, 12), (ZSTD, 1, 19)])
def test_a_higher_level_compresses_better(codec, fast, small):
    text = " ".join(f"{n * n} {n % 97}" for n in range(20_000)).encode()
    assert len(compress(codec, text, small)) < len(compress(codec, text, fast))
    assert decompress(codec, compress(codec, text, small), max_bytes=len(text)) == text


@pytest.mark.parametrize("codec", [-1, 5, 7])
def test_unknown_codecs_are_refused(codec):
    for call in (lambda: compress(codec, b""), lambda: decompress(codec, b"", max_bytes=10)):
        with pytest.raises(BatchError, match=f"compression={codec}") as caught:
            call()
        assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("codec", COMPRESSING)
def test_cut_payloads_are_refused(codec):
    packed = compress(codec, b"some text that is cut " * 100)
    for length in (0, 1, 5, len(packed) // 2, len(packed) - 1):
        with pytest.raises(BatchError, match="do not decompress"):
            decompress(codec, packed[:length], max_bytes=100_000)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(COMPRESSING), st.binary(max_size=60), st.data())
def test_changed_or_random_payloads_raise_nothing_but_batch_errors(codec, noise, data):
    packed = bytearray(compress(codec, b"some text to break " * 20))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    for broken in (bytes(packed), noise, bytes(packed[:5]) + noise):
        with suppress(BatchError):
            assert len(decompress(codec, broken, max_bytes=5000)) <= 5000
