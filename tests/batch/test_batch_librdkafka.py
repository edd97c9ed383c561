"""Batches that librdkafka sent, caught by tools/capture_batches.py, against ours."""

import json
from pathlib import Path

import pytest

from penstock.batch import (
    HEADER_SIZE,
    Record,
    build_batch,
    check_produced,
    decompress,
    read_header,
    read_records,
    recompress,
    validate_records,
)

FIXTURES = Path(__file__).parent / "fixtures"
CASES = json.loads((FIXTURES / "cases.json").read_text())
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def caught(name: str) -> bytes:
    return (FIXTURES / f"{name}.batch").read_bytes()


def codec(name: str) -> int:
    return CODECS[CASES[name]["settings"].get("compression.type", "none")]


def sent(name: str) -> list[Record]:
    """The records that the producer was given."""
    return [
        Record(
            offset,
            message["timestamp"],
            None if message.get("key") is None else message["key"].encode(),
            None if message.get("value") is None else message["value"].encode() * message.get("times", 1),
            tuple(
                (key, None if value is None else value.encode()) for key, value in message.get("headers", ())
            ),
        )
        for offset, message in enumerate(CASES[name]["messages"])
    ]


def rebuilt(name: str, compression: int) -> bytes:
    idempotent = CASES[name]["settings"].get("enable.idempotence", False)
    producer = {"producer_id": 4711, "producer_epoch": 3, "base_sequence": 0} if idempotent else {}
    return build_batch(sent(name), compression=compression, **producer)


def test_the_fixtures_cover_every_codec_and_idempotence():
    assert {codec(name) for name in CASES} == set(range(5))
    assert {path.stem for path in FIXTURES.glob("*.batch")} == set(CASES)
    assert any(CASES[name]["settings"].get("enable.idempotence") for name in CASES)


@pytest.mark.parametrize("name", CASES)
def test_batches_of_librdkafka_are_accepted_and_read(name):
    batch = caught(name)
    header = check_produced(batch)
    assert header.size == len(batch)
    assert header.compression == codec(name)
    assert validate_records(batch) == header
    assert read_records(batch) == sent(name)


@pytest.mark.parametrize("name", [name for name in CASES if codec(name) == 0])
def test_uncompressed_batches_are_the_same_byte_for_byte(name):
    assert rebuilt(name, 0) == caught(name)


@pytest.mark.parametrize("name", [name for name in CASES if codec(name) != 0])
def test_compressed_batches_have_the_same_header_and_records(name):
    theirs, ours = caught(name), rebuilt(name, codec(name))
    not_comparable = {"batch_length": 0, "crc": 0}
    assert read_header(ours)._replace(**not_comparable) == read_header(theirs)._replace(**not_comparable)
    payloads = [decompress(codec(name), batch[HEADER_SIZE:], max_bytes=1_000_000) for batch in (ours, theirs)]
    assert payloads[0] == payloads[1]
    assert recompress(theirs, read_header(theirs), 0)[0] == rebuilt(name, 0)
