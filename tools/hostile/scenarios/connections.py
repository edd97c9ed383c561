"""Many connections, and connections that do not behave."""

import time

from penstock.batch import Record, build_batch
from penstock.batch.compression import GZIP, LZ4, ZSTD
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.kafka.wire.messages.init_producer_id import InitProducerIdRequest
from penstock.kafka.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.kafka.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.kafka.requests import write
from tools.hostile.attack import Attack
from tools.hostile.brokers import MEBIBYTE

TOPIC = "large"
RECORD_BYTES = 900_000
STORED_BYTES = 60 * MEBIBYTE
FETCH_BYTES = 55 * MEBIBYTE
READERS = 100
FETCHES = 3
HELD_SECONDS = 5.0
BAD_CONNECTIONS = 8_000
TINY_BATCHES = 50_000
HALF_FRAMES = 2_000
PRODUCER_IDS = 20_000
GARBAGE = (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"\xff" * 8, bytes(4))
BOMBED = "unpacked"
BOMB_BYTES = 100_000_000
BOMBS_PER_REQUEST = 20
BOMB_REQUESTS = 3
TIME_MS = 1_700_000_000_000
LONGEST_MS = 2**63 - 1


def store_large_records(attack: Attack) -> None:
    attack.must_create(TOPIC)
    with attack.kafka() as client:
        for _ in range(STORED_BYTES // RECORD_BYTES):
            write(client, TOPIC, b"x" * RECORD_BYTES)


def create_empty_topic(attack: Attack) -> None:
    attack.must_create(TOPIC)


def fetch_and_never_read(attack: Attack) -> None:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=FETCH_BYTES)
    topics = [FetchTopic(topic=TOPIC, partitions=[wanted])]
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=FETCH_BYTES, topics=topics)
    clients = [attack.kafka(receive_buffer=4096) for _ in range(READERS)]
    for _ in range(FETCHES):
        for client in clients:
            try:
                client.request(ApiKey.FETCH, 11, request)
            except ConnectionError:
                continue  # the node has closed it
    time.sleep(HELD_SECONDS)
    attack.note = f"{READERS * FETCHES} responses of {FETCH_BYTES // MEBIBYTE} MiB were asked for"


def send_garbage(attack: Attack) -> None:
    for number in range(BAD_CONNECTIONS):
        one = attack.connect(attack.node.node.kafka_port)
        one.sendall(GARBAGE[number % len(GARBAGE)])
        attack.close(one)


def produce_tiny_batches(attack: Attack) -> None:
    """One request."""
    data = PartitionProduceData(index=0, records=build_batch([Record(0, TIME_MS, None, b"x")]))
    topics = [TopicProduceData(name=TOPIC, partition_data=[data] * TINY_BATCHES)]
    with attack.kafka() as client:
        client.call(ApiKey.PRODUCE, 9, ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics))


def send_half_frames(attack: Attack) -> None:
    """Each announces 50 MB and sends a part of it."""
    for _ in range(HALF_FRAMES):
        one = attack.connect(attack.node.node.kafka_port)
        one.sendall((50_000_000).to_bytes(4, "big") + bytes(10_000))
    time.sleep(HELD_SECONDS)


def take_producer_ids(attack: Attack) -> None:
    with attack.kafka() as client:
        for _ in range(PRODUCER_IDS // 100):
            for _ in range(100):
                client.request(ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest())
            for _ in range(100):
                client.read_frame()


def create_topic_that_unpacks(attack: Attack) -> None:
    """The broker compresses its batches with another codec, and so has to unpack them."""
    attack.must_create(BOMBED, compression_type="snappy")


def send_bombs(attack: Attack) -> None:
    """A hundred megabytes of zeros in 10 to 400 kilobytes, depending on the codec."""
    zeros = Record(0, TIME_MS, None, bytes(BOMB_BYTES))
    for codec in (GZIP, LZ4, ZSTD):
        data = PartitionProduceData(index=0, records=build_batch([zeros], compression=codec))
        topics = [TopicProduceData(name=BOMBED, partition_data=[data] * BOMBS_PER_REQUEST)]
        request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics)
        for _ in range(BOMB_REQUESTS):
            with attack.kafka() as client:
                client.call(ApiKey.PRODUCE, 9, request)


def commit_offsets_for_ever(attack: Attack) -> None:
    """Retention times up to the end of 64 bits."""
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topics = [OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])]
    attack.create_topic(TOPIC)
    for retention_ms in (LONGEST_MS, LONGEST_MS - 1, -(2**63), 2**62, 0, 1):
        request = OffsetCommitRequest(group_id="eternal", topics=topics, retention_time_ms=retention_ms)
        with attack.kafka() as client:
            client.call(ApiKey.OFFSET_COMMIT, 2, request)
    if attack.create_topic(f"{TOPIC}-after") != ErrorCode.NONE:
        attack.fail("no topic can be created afterwards")
