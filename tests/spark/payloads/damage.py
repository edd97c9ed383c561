"""Decodes values with flipped, overwritten and missing bytes: `python -m ... KIND SEED COUNT`.

Address space is limited, so that an allocation of what a damaged length says fails instead of passing unseen.
"""

import io
import random
import resource
import sys
from typing import Any

import fastavro
import pyarrow as pa

from penstock.spark.payloads import Decoder, PayloadOptions, decoder_for
from penstock.spark.payloads.ddl import parse_schema

ADDRESS_SPACE_BYTES = 6 << 30
DDL = (
    "id bigint, s string, a array<int>, m map<string,double>, st struct<x:timestamp>, dec decimal(20,2), "
    "b boolean, bin binary"
)
ROWS = 20


def arrow_values() -> list[bytes]:
    """Every layout that is read: plain, large, views, dictionaries; compressed or not; streams and files."""
    return [
        _ipc(_batch(text, wide), compression, make)
        for text in ("plain", "view", "dictionary")
        for wide in (False, True)
        for compression in (None, "lz4", "zstd")
        for make in (pa.ipc.new_stream, pa.ipc.new_file)
    ]


def _batch(text: str, wide: bool) -> pa.RecordBatch:
    strings = pa.array(["é" * (i % 20) if i % 3 else None for i in range(ROWS)])
    if text == "dictionary":
        strings = strings.dictionary_encode()
    elif text == "view":
        strings = strings.cast(pa.string_view())
    lists = pa.large_list(pa.int32()) if wide else pa.list_(pa.int32())
    return pa.record_batch(
        {
            "id": pa.array(range(ROWS), pa.int32() if wide else pa.int64()),
            "s": strings,
            "a": pa.array([[i, None] if i % 4 else None for i in range(ROWS)], lists),
            "m": pa.array([[("k", 1.0)]] * ROWS, pa.map_(pa.string(), pa.float64())),
            "st": pa.array([{"x": 1} if i % 2 else None for i in range(ROWS)], pa.struct([("x", STAMP)])),
            "dec": pa.array([i if i % 2 else None for i in range(ROWS)], pa.decimal128(20, 2)),
            "b": pa.array([True, False] * (ROWS // 2)),
            "bin": pa.array([b"x"] * ROWS, pa.binary(1) if wide else pa.binary()),
        }
    )


STAMP = pa.timestamp("us", "UTC")


def _ipc(batch: pa.RecordBatch, compression: str | None, make: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with make(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Top",
    "fields": [
        {"name": "id", "type": ["null", "long"]},
        {"name": "s", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "a", "type": {"type": "array", "items": ["int", "null"]}},
        {"name": "m", "type": {"type": "map", "values": "double"}},
        {"name": "dec", "type": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2}},
        {"name": "bin", "type": "bytes"},
    ],
}
AVRO_ROW = {"id": 1, "s": "B", "a": [1, None, 3], "m": {"k": 1.5}, "dec": b"\x01", "bin": b"xyz"}
AVRO_DDL = "id bigint, s string, a array<int>, m map<string,double>, dec decimal(20,2), bin binary"


def avro_values() -> list[bytes]:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(AVRO), AVRO_ROW)
    return [sink.getvalue()]


def container_values() -> list[bytes]:
    made = []
    for codec in ("null", "deflate", "snappy"):
        sink = io.BytesIO()
        fastavro.writer(sink, fastavro.parse_schema(AVRO), [AVRO_ROW] * 5, codec=codec)
        made.append(sink.getvalue())
    return made


def json_values() -> list[bytes]:
    return [
        b'{"id":1,"s":"x","a":[1,null],"st":{"x":"2024-01-01T00:00:00Z"},"dec":1.5,"b":true,"bin":"AQI="}',
        b'{"id":null,"zz":{"a":[{}]}}',
        b"null",
        b"{}null{}",
    ]


def csv_values() -> list[bytes]:
    return [b'1,"a ""b"", c",2024-01-01,1.5,true', b',,,,\n"x', b'"\n",,,,']


def options(**given: Any) -> PayloadOptions:
    return PayloadOptions(**given)


KINDS: dict[str, tuple[Any, Any]] = {
    "arrow": (arrow_values, lambda: decoder_for("arrow", parse_schema(DDL), options())),
    "avro": (avro_values, lambda: decoder_for("avro", parse_schema(AVRO_DDL), options())),
    "container": (
        container_values,
        lambda: decoder_for("avro", parse_schema(AVRO_DDL), options(avro_framing="container")),
    ),
    "json": (
        json_values,
        lambda: decoder_for("json", parse_schema(DDL.replace("m map<string,double>, ", "")), options()),
    ),
    "csv": (
        csv_values,
        lambda: decoder_for(
            "csv", parse_schema("a int, b string, c date, d decimal(9,2), e boolean"), options()
        ),
    ),
}


def damaged(chance: random.Random, value: bytes) -> bytes:
    made = bytearray(value)
    for _ in range(chance.choice((1, 1, 2, 4, 10))):
        at = chance.randrange(len(made) + 1)
        match chance.randrange(6):
            case 0 | 1 if at < len(made):
                made[at] ^= 1 << chance.randrange(8)
            case 2:
                made[at : at + 1] = chance.choice((b"\0", b"\xff", b"\x7f", b"\x80", b"{", b"}", b'"', b"\n"))
            case 3:
                made[at : at + 4] = chance.choice((b"\xff\xff\xff\x7f", b"\xff" * 4, b"\0" * 4, b"null"))
            case 4:
                at &= ~7
                made[at : at + 8] = chance.randrange(-1 << 40, 1 << 62).to_bytes(8, "little", signed=True)
            case _:
                del made[at : at + chance.randrange(16)]
    return bytes(made)


def run(decoder: Decoder, values: list[bytes], seed: int, count: int) -> None:
    chance = random.Random(seed)
    for _ in range(count):
        batch = [None if chance.random() < 0.1 else damaged(chance, chance.choice(values)) for _ in range(3)]
        decoded = decoder.decode(pa.array(batch, pa.binary()))
        decoded.values.validate(full=True)
        assert all(batch[at] is not None and 0 < len(reason) <= 300 for at, reason in decoded.bad)


def main(kind: str, seed: str, count: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    make_values, make_decoder = KINDS[kind]
    run(make_decoder(), make_values(), int(seed), int(count))


if __name__ == "__main__":
    main(*sys.argv[1:])
