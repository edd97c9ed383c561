"""Batches that cross between Penstock and two clients with codecs of their own."""

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record import MemoryRecords

from penstock.batch import Record, build_batch, check_produced, read_records

RECORDS = [
    Record(
        n,
        1_700_000_000_000 + n * 7,
        None if n % 5 == 0 else b"key %d" % n,
        None if n % 7 == 0 else b"value %d " % n * n,
        (("trace", b"%d" % n), ("null", None)) if n % 3 == 0 else (),
    )
    for n in range(200)
]

codecs = pytest.mark.parametrize("codec", range(5), ids=["none", "gzip", "snappy", "lz4", "zstd"])


@codecs
def test_aiokafka_reads_batches_of_penstock(codec):
    batch = DefaultRecordBatch(bytearray(build_batch(RECORDS, compression=codec)))
    assert batch.validate_crc()
    found = [
        Record(record.offset, record.timestamp, record.key, record.value, tuple(record.headers))
        for record in batch
    ]
    assert found == RECORDS


@pytest.mark.parametrize(
    "codec", [0, 1], ids=["none", "gzip"]
)  # the others need packages that it does not bring
def test_kafka_python_reads_batches_of_penstock(codec):
    batch = MemoryRecords(build_batch(RECORDS, compression=codec)).next_batch()
    assert batch.validate_crc()
    found = [
        Record(record.offset, record.timestamp, record.key, record.value, tuple(record.headers))
        for record in batch
    ]
    assert found == RECORDS


@codecs
@pytest.mark.parametrize("producer", [(-1, -1, -1), (77, 2, 1000)])
def test_penstock_reads_batches_of_aiokafka(codec, producer):
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        batch_size=1_000_000,
    )
    for record in RECORDS:
        builder.append(record.offset, record.timestamp, record.key, record.value, list(record.headers))
    batch = bytes(builder.build())
    header = check_produced(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == producer
    assert header.compression == codec
    assert read_records(batch) == RECORDS
