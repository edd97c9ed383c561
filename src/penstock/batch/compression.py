"""The five codecs of record batches, by their number in a batch's attributes, and limits on decompressed sizes.

  0 none     the records as they are
  1 gzip     RFC 1952, one or more members
  2 snappy   either one raw snappy block (librdkafka), or xerial's framing (Java):
                 82 'SNAPPY' 00 | int32 version | int32 oldest reader | { int32 size | raw block } ...
             Both are read; xerial's is written, because a broker in Java writes it and all clients read it.
  3 lz4      LZ4 frames. Written with independent blocks: Java's reader refuses linked ones.
  4 zstd     RFC 8878 frames

A few compressed bytes can claim to be gigabytes. So every decompression has a limit: output goes into a buffer that is
never larger than `max_bytes`, and a payload that does not fit is refused. A size that the payload states is only a
first guess. Untouched pages of such a buffer cost no memory, so a false statement costs nothing.
"""

from collections.abc import Callable
from struct import Struct

import cramjam

from penstock.batch.header import Buffer
from penstock.errors import BatchError, ErrorCode

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

MAX_DECOMPRESSED_BYTES = 100 * 1024 * 1024
"""The limit for one batch's records: what Kafka accepts in one request (socket.request.max.bytes)."""

SMALLEST_GUESS = 4096
GROWTH = 4
"""A guess that was too small is repeated with a larger buffer: several gzip members or frames in a row."""
LZ4_MAX_RATIO = 255
ZSTD_MAX_BLOCK = 128 * 1024

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + b"\x00\x00\x00\x01" + b"\x00\x00\x00\x01"
XERIAL_BLOCK_SIZE = 32 * 1024
"""The size of the blocks into which Java's SnappyOutputStream cuts its input."""

GZIP_DEFAULT = -1
"""zlib's name for its default level, which Kafka's compression.gzip.level takes over."""
LZ4_FAST = 1
_INT32 = Struct(">i")
_UINT32_LE = Struct("<I")


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """`data` in the codec's format. `level` None is the codec's own default; snappy has no levels."""
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        return bytes(cramjam.gzip.compress(data, level=None if level == GZIP_DEFAULT else level))
    if codec == SNAPPY:
        return _compress_xerial(data)
    if codec == LZ4:
        return _compress_lz4(data, level)
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level=level))
    raise _unknown(codec)


def decompress(codec: int, data: Buffer, *, max_bytes: int) -> bytes:
    """The original data, if it is at most `max_bytes` long; BatchError otherwise."""
    if codec == NONE:
        if len(data) > max_bytes:
            raise _too_large(codec, max_bytes)
        return bytes(data)
    if codec == SNAPPY:
        return _decompress_snappy(memoryview(data), max_bytes)
    if codec == GZIP:
        return _inflate(codec, cramjam.gzip.decompress_into, data, _gzip_size(data), max_bytes)
    if codec == LZ4:
        return _inflate(codec, cramjam.lz4.decompress_into, data, _lz4_size(data), max_bytes)
    if codec == ZSTD:
        return _inflate(codec, cramjam.zstd.decompress_into, data, _zstd_size(data), max_bytes)
    raise _unknown(codec)


def stated_size(codec: int, data: Buffer) -> int:
    """The decompressed size that a payload states, or the most that its blocks can hold. It may be false: callers
    that reserve memory by it also decompress with it as the limit."""
    if codec == GZIP:
        return max(_gzip_size(data), SMALLEST_GUESS)
    if codec == SNAPPY:
        return max(_snappy_size(memoryview(data)), SMALLEST_GUESS)
    if codec == LZ4:
        return max(_lz4_size(data), SMALLEST_GUESS)
    if codec == ZSTD:
        return max(_zstd_size(data), SMALLEST_GUESS)
    return len(data)


def _inflate(
    codec: int, into: Callable[[Buffer, bytearray], int], data: Buffer, stated: int, max_bytes: int
) -> bytes:
    """Decompresses into a buffer of the stated or guessed size, and into larger ones while that fails.

    A corrupt payload is retried as well, since only the text of the error distinguishes it from a long one. The work
    is bounded, and such payloads are rare: they have passed a CRC.
    """
    size = min(max(stated, SMALLEST_GUESS), max_bytes)
    while True:
        out = bytearray(size)
        try:
            return bytes(memoryview(out)[: into(data, out)])
        except cramjam.DecompressionError as problem:
            if size >= max_bytes:
                raise _broken(codec, max_bytes, problem) from None
        size = min(size * GROWTH, max_bytes)


def _gzip_size(data: Buffer) -> int:
    """The last member's size modulo 2**32, which is the trailer's last field."""
    return int(_UINT32_LE.unpack_from(data, len(data) - 4)[0]) if len(data) >= 18 else 0


def _lz4_size(data: Buffer) -> int:
    """The frame's content size where it has one, else the most that its blocks can hold.

    Byte 4 holds flags (3: content size, 4: a checksum after each block), byte 5 in bits 4-6 the largest
    block: 4 is 64 KiB, each further one four times as much.
    """
    if len(data) < 15:
        return 0
    if data[4] & 0x08:
        return int.from_bytes(data[6:14], "little")
    largest = 1 << (8 + 2 * (data[5] >> 4 & 7))
    checksum = 4 if data[4] & 0x10 else 0
    pos, size = 7, 0
    while pos + 4 <= len(data):
        length = int(_UINT32_LE.unpack_from(data, pos)[0]) & 0x7FFFFFFF  # the top bit: stored as it is
        if length == 0:
            break
        size += min(largest, length * LZ4_MAX_RATIO)
        pos += 4 + length + checksum
    return size


def _zstd_size(data: Buffer) -> int:
    """The frame's content size where it has one (librdkafka's have not), else the most its blocks can hold.

    Byte 4 describes the header: bits 6-7 the content size's width, 5 no window byte, 0-1 the dictionary
    id's width. A block starts with 3 bytes: bit 0 marks the last one, 1-2 its kind (0 stored, 1 one byte
    repeated), the rest is its length.
    """
    if len(data) < 9:
        return 0
    descriptor = data[4]
    one_segment = descriptor & 0x20
    width = (1 if one_segment else 0, 2, 4, 8)[descriptor >> 6]
    pos = 5 + (0 if one_segment else 1) + (0, 1, 2, 4)[descriptor & 3]
    if width:
        return int.from_bytes(data[pos : pos + width], "little") + (256 if width == 2 else 0)
    size = 0
    while pos + 3 <= len(data):
        block = int.from_bytes(data[pos : pos + 3], "little")
        last, kind, length = block & 1, block >> 1 & 3, block >> 3
        size += length if kind < 2 else ZSTD_MAX_BLOCK
        pos += 3 + (1 if kind == 1 else length)
        if last:
            break
    return size


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    level = LZ4_FAST if level is None else level
    # No content checksum, as in Java and librdkafka: the batch has its CRC.
    compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    compressor.compress(bytes(data))  # unlike the other codecs' functions it takes nothing else
    return bytes(compressor.finish())


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [XERIAL_HEADER]
    for start in range(0, len(view), XERIAL_BLOCK_SIZE):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + XERIAL_BLOCK_SIZE]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(view: memoryview, max_bytes: int) -> bytes:
    blocks = _xerial_blocks(view) if view[:8] == XERIAL_MAGIC else [view]
    try:
        sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
        if sum(sizes) > max_bytes:
            raise _too_large(SNAPPY, max_bytes)
        out = memoryview(bytearray(sum(sizes)))
        end = 0
        for block, size in zip(blocks, sizes, strict=True):
            end += cramjam.snappy.decompress_raw_into(block, out[end : end + size])
    except cramjam.DecompressionError as problem:
        raise _corrupt(SNAPPY, problem) from None
    return bytes(out[:end])


def _snappy_size(view: memoryview) -> int:
    try:
        blocks = _xerial_blocks(view) if view[:8] == XERIAL_MAGIC else [view]
        return sum(cramjam.snappy.decompress_raw_len(block) for block in blocks)
    except (cramjam.DecompressionError, BatchError):
        return 0


def _xerial_blocks(view: memoryview) -> list[memoryview]:
    if view[: len(XERIAL_HEADER)] != XERIAL_HEADER:
        raise _corrupt(SNAPPY, f"xerial header {bytes(view[8:16]).hex()}: expected versions 1 and 1")
    blocks, pos, end = [], len(XERIAL_HEADER), len(view)
    while pos < end:
        if end - pos < 4:
            raise _corrupt(SNAPPY, f"{end - pos} bytes after the last xerial block: expected none")
        (size,) = _INT32.unpack_from(view, pos)
        pos += 4
        if not 0 < size <= end - pos:
            raise _corrupt(SNAPPY, f"xerial block size={size}: expected 1 .. {end - pos}")
        blocks.append(view[pos : pos + size])
        pos += size
    return blocks


def _broken(codec: int, max_bytes: int, problem: Exception) -> BatchError:
    if "whole buffer" in str(problem) or "too small" in str(problem):
        return _too_large(codec, max_bytes)
    return _corrupt(codec, problem)


def _corrupt(codec: int, problem: object) -> BatchError:
    return BatchError(f"compression={CODEC_NAMES[codec]}: the records do not decompress: {problem}")


def _too_large(codec: int, max_bytes: int) -> BatchError:
    return BatchError(
        f"compression={CODEC_NAMES[codec]}: expected records of at most {max_bytes} bytes when decompressed",
        ErrorCode.MESSAGE_TOO_LARGE,
    )


def _unknown(codec: int) -> BatchError:
    return BatchError(f"compression={codec}: expected 0 .. {ZSTD}", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
