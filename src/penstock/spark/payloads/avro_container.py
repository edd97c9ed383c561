"""Avro object container files as values: self-describing, with many rows in one record.

    "Obj" 01 | metadata (map of bytes: avro.schema, avro.codec) | sync marker (16 bytes)
    block*:  count (long) | size (long) | data, maybe compressed | sync marker

The schema is the writer's own, so it is bounded before use (avro_schema), blocks are unpacked only up to a limit, and
the columns are matched to those asked for by name, as for Arrow values.
"""

import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any, NamedTuple

import cramjam
import pyarrow as pa
from fastavro import schemaless_reader
from pyspark.sql.types import StructType

from .arrow_fit import Convert, fit
from .avro_columns import columns_of
from .avro_read import BROKEN, DatumReader, explained
from .avro_schema import Shape, parse_avro
from .interfaces import BadValue, PayloadError, clip
from .ipc_scan import MAX_UNPACKED_BYTES
from .many_rows import ManyRowsDecoder
from .spark_types import arrow_struct, check_promises

MAGIC = b"Obj\x01"
SYNC_BYTES = 16
MAX_PLANS = 64
METADATA: dict[str, Any] = {"type": "map", "values": "bytes"}
CODECS = ("null", "deflate", "snappy", "zstandard")


class Header(NamedTuple):
    schema: bytes
    codec: str
    sync: bytes


class _Plan(NamedTuple):
    reader: DatumReader
    arrow_type: pa.StructType
    convert: Convert


class AvroContainerDecoder(ManyRowsDecoder):
    def __init__(self, schema: StructType) -> None:
        super().__init__(arrow_struct(schema))
        self._plans: dict[bytes, _Plan] = {}

    def _batches(self, value: pa.Buffer) -> list[pa.StructArray]:
        source = BytesIO(value.to_pybytes())
        header = read_header(source)
        plan = self._plan(header.schema)
        made = [self._columns(rows, plan) for rows in _blocks(source, header, plan.reader)]
        return made or [pa.array([], self.arrow_type)]

    def _plan(self, schema: bytes) -> _Plan:
        plan = self._plans.get(schema)
        if plan is None:
            reader = _reader(schema)
            kind = arrow_struct(_struct(reader.shape))
            plan = _Plan(reader, kind, fit(kind, self.arrow_type))
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            self._plans[schema] = plan
        return plan

    def _columns(self, rows: list[dict[str, Any]], plan: _Plan) -> pa.StructArray:
        try:
            made = plan.convert(columns_of(rows, plan.reader.shape, plan.arrow_type))
        except (pa.ArrowException, OverflowError) as error:
            raise BadValue(f"a number does not fit its type: {error}") from None
        check_promises(made, self.arrow_type)
        return made


def _struct(shape: Shape) -> StructType:
    assert isinstance(shape.spark, StructType)
    return shape.spark


def _reader(schema: bytes) -> DatumReader:
    try:
        return DatumReader(container_shape(schema))
    except PayloadError as error:
        raise BadValue(str(error)) from None


def container_shape(schema: bytes) -> Shape:
    try:
        shape = parse_avro(schema.decode())
    except (PayloadError, UnicodeDecodeError, RecursionError) as error:
        raise BadValue(f"the container's schema cannot be read: {clip(str(error))}") from None
    if not shape.min_bytes:
        raise BadValue("the container's records take no bytes, so their number cannot be believed")
    return shape


def read_header(source: BytesIO) -> Header:
    if source.read(len(MAGIC)) != MAGIC:
        raise BadValue("expected an Avro object container, found something else")
    metadata: Any = _read(source, METADATA)
    codec = metadata.get("avro.codec", b"null").decode(errors="replace")
    if codec not in CODECS:
        raise BadValue(f"the container is compressed with {clip(codec, 20)!r}; expected {', '.join(CODECS)}")
    sync = source.read(SYNC_BYTES)
    if "avro.schema" not in metadata or len(sync) != SYNC_BYTES:
        raise BadValue("the Avro container's header is not whole")
    return Header(metadata["avro.schema"], codec, sync)


def _read(source: BytesIO, schema: Any) -> Any:
    try:
        return schemaless_reader(source, schema, None)
    except BROKEN as error:
        raise BadValue(f"the Avro container is malformed: {explained(error)}") from None


def _blocks(source: BytesIO, header: Header, reader: DatumReader) -> Iterator[list[dict[str, Any]]]:
    whole, limit = len(source.getbuffer()), MAX_UNPACKED_BYTES
    while source.tell() < whole:
        count, size = _read(source, "long"), _read(source, "long")
        if count < 0 or not 0 <= size <= whole - source.tell():
            raise BadValue(f"the Avro container claims a block of {count} records in {size} bytes")
        data = _unpacked(source.read(size), header.codec, limit)
        limit -= len(data)
        if source.read(SYNC_BYTES) != header.sync:
            raise BadValue("the Avro container is malformed: a block does not end with the sync marker")
        yield _rows(BytesIO(data), count, reader, len(data))


def _rows(source: BytesIO, count: int, reader: DatumReader, size: int) -> list[dict[str, Any]]:
    # Every record takes a byte at least, so a count that is too high runs out of data.
    rows = [reader.read(source) for _ in range(count)]
    if source.tell() != size:
        raise BadValue(f"{size - source.tell()} bytes follow the last record of a block")
    return rows


def _unpacked(data: bytes, codec: str, limit: int) -> bytes:
    """The decompressed data, at most `limit` bytes; BadValue if there are more."""
    try:
        unpacked = _UNPACKERS[codec](data, limit)
    except (zlib.error, cramjam.DecompressionError, pa.ArrowException, OSError, ValueError) as error:
        raise BadValue(f"a block of the Avro container does not unpack: {clip(str(error), 80)}") from None
    if len(unpacked) > limit:
        raise BadValue(f"the Avro container unpacks to more than {MAX_UNPACKED_BYTES} bytes")
    return unpacked


def _deflate(data: bytes, limit: int) -> bytes:
    return zlib.decompressobj(wbits=-15).decompress(data, limit + 1)


def _snappy(data: bytes, limit: int) -> bytes:
    # Four bytes of CRC-32 follow the compressed data.
    if cramjam.snappy.decompress_raw_len(data[:-4]) > limit:
        return bytes(limit + 1)
    unpacked = bytes(cramjam.snappy.decompress_raw(data[:-4]))
    if zlib.crc32(unpacked) != int.from_bytes(data[-4:], "big"):
        raise ValueError("the checksum does not match")
    return unpacked


def _zstandard(data: bytes, limit: int) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        return bytes(stream.read(limit + 1))


_UNPACKERS: dict[str, Callable[[bytes, int], bytes]] = {
    "null": lambda data, limit: data,
    "deflate": _deflate,
    "snappy": _snappy,
    "zstandard": _zstandard,
}
