"""Ranges read from brokers that restart, lose leadership, answer wrongly or have gaps in their logs."""

import socket
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock import Broker
from penstock.batch import Record, build_batch
from penstock.client import Garbled, Refused, Unreachable
from penstock.client.wire import OffsetGone, fetch_range
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey, Message
from penstock.kafka.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from penstock.kafka.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.types import TopicPartition
from tests.client.wire.conftest import Connect
from tests.client.wire.fake import (
    HANG_UP,
    PATIENCE_SECONDS,
    SILENCE,
    TOPIC,
    Answer,
    FakeBroker,
    Raw,
    Request,
    frame_of,
    in_turn,
    versions,
)
from tests.client.wire.records import append, append_numbers, offsets_of

PLACE = TopicPartition(TOPIC, 0)
COUNT = 200


def batch_at(*offsets: int, size: int = 1) -> bytes:
    records = [Record(offset, 1_000, None, b"x" * size) for offset in offsets]
    return build_batch(records, base_offset=offsets[0])


def fetched(
    records: bytes = b"", *, watermark: int = 100, code: int = 0, stable: int = -1, partition: int = 0
) -> Message:
    row = PartitionData(
        partition_index=partition,
        error_code=code,
        high_watermark=watermark,
        last_stable_offset=stable,
        log_start_offset=0,
        records=records,
    )
    return FetchResponse(responses=[FetchableTopicResponse(topic=TOPIC, partitions=[row])])


def positions(fake: FakeBroker) -> list[int]:
    """The offsets that were asked for."""
    messages = [request.message for request in fake.asked(ApiKey.FETCH)]
    assert all(isinstance(message, FetchRequest) for message in messages)
    return [message.topics[0].partitions[0].fetch_offset for message in messages]  # type: ignore[attr-defined]


# --- restarts and leaders


def test_a_broker_that_restarts_in_the_middle_of_a_read_loses_nothing(
    tmp_path: Path, connect: Connect
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    tp = TopicPartition("numbers", 0)
    cluster = connect(address, retry_for_ms=20_000)
    with Broker(data_dir=tmp_path / "data", kafka=address, http=None):
        cluster.create_topic(tp.topic)
        append_numbers(cluster, tp, COUNT)
        reading = fetch_range(cluster, tp, 0, COUNT, fetch_bytes=1)
        seen = offsets_of(next(reading) for _ in range(3))
    with Broker(data_dir=tmp_path / "data", kafka=address, http=None):
        seen += offsets_of(next(reading) for _ in range(3))
    with Broker(data_dir=tmp_path / "data", kafka=address, http=None):
        seen += offsets_of(reading)
        assert cluster.topics([tp.topic])
    assert seen == list(range(COUNT))


@pytest.mark.parametrize(
    "trouble",
    [
        fetched(code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        fetched(code=ErrorCode.UNKNOWN_LEADER_EPOCH),
        fetched(code=ErrorCode.KAFKA_STORAGE_ERROR),
        FetchResponse(throttle_time_ms=50),
        HANG_UP,
        SILENCE,
    ],
    ids=["not the leader", "epoch", "storage", "throttled", "hang-up", "silence"],
)
def test_a_read_continues_at_its_position(connect: Connect, trouble: Answer) -> None:
    answers = in_turn(fetched(batch_at(0, 1)), trouble, fetched(batch_at(2, 3)), fetched(batch_at(4, 5)))
    with FakeBroker({ApiKey.FETCH: answers}) as fake:
        cluster = connect(fake.address, request_timeout_ms=2_000 if trouble is SILENCE else 60_000)
        assert offsets_of(fetch_range(cluster, PLACE, 0, 6)) == [0, 1, 2, 3, 4, 5]
        assert positions(fake) == [0, 2, 2, 4]


def test_a_leader_that_moves_is_followed(connect: Connect) -> None:
    with FakeBroker({ApiKey.FETCH: in_turn(fetched(batch_at(1)))}) as new, FakeBroker() as old:
        old.teach(ApiKey.METADATA, in_turn(old.metadata(), old.metadata(port=new.port)))
        moved = fetched(code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        old.teach(ApiKey.FETCH, in_turn(fetched(batch_at(0)), moved))
        assert offsets_of(fetch_range(connect(old.address), PLACE, 0, 2)) == [0, 1]
        assert (positions(old), positions(new)) == ([0, 1], [1])


def test_a_truncated_response_is_requested_again(connect: Connect) -> None:
    whole = fetched(batch_at(0, size=1_000))
    answers = iter([True, False])

    def half_then_whole(request: Request) -> Answer:
        return Raw(frame_of(request, whole)[:500]) if next(answers) else whole

    with FakeBroker({ApiKey.FETCH: half_then_whole}) as fake:
        assert offsets_of(fetch_range(connect(fake.address), PLACE, 0, 1)) == [0]


def test_a_lasting_failure_is_reported_with_the_attempts(connect: Connect) -> None:
    with FakeBroker({ApiKey.FETCH: in_turn(HANG_UP)}) as fake:
        reading = fetch_range(connect(fake.address, retry_for_ms=40), PLACE, 0, 1)
        with pytest.raises(Unreachable, match=r"tried (?:once|\d+ times).*retry_for_ms=40"):
            next(reading)
    with FakeBroker({ApiKey.FETCH: in_turn(fetched(code=ErrorCode.TOPIC_AUTHORIZATION_FAILED))}) as fake:
        with pytest.raises(Refused, match="fake-0: TOPIC_AUTHORIZATION_FAILED"):
            list(fetch_range(connect(fake.address), PLACE, 0, 1))
        assert len(positions(fake)) == 1


def test_every_chunk_restarts_the_retry_time(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures last longer than retry_for_ms in sum, but never between two chunks."""
    slept = [0.0]

    def sleep(seconds: float) -> None:
        slept[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: slept[0], sleep=sleep)
    monkeypatch.setattr("penstock.client.wire.retry.time", clock)
    hiccup, count = fetched(code=ErrorCode.NOT_LEADER_OR_FOLLOWER), 16
    answers = [answer for n in range(count) for answer in (hiccup, hiccup, fetched(batch_at(n)))]
    with FakeBroker({ApiKey.FETCH: in_turn(*answers)}) as fake:
        cluster = connect(fake.address, retry_backoff_ms=100, retry_for_ms=700)
        assert offsets_of(fetch_range(cluster, PLACE, 0, count)) == list(range(count))
    assert slept[0] > 0.7


# --- gaps


def test_gaps_from_compaction_are_skipped(connect: Connect) -> None:
    answers = in_turn(
        fetched(batch_at(3, 8) + batch_at(15)), fetched(batch_at(40, 45)), fetched(batch_at(99))
    )
    with FakeBroker({ApiKey.FETCH: answers}) as fake:
        assert offsets_of(fetch_range(connect(fake.address), PLACE, 0, 60)) == [3, 8, 15, 40, 45]
        assert positions(fake) == [0, 16, 46]


def test_an_empty_rest_of_the_range_is_accepted_after_two_responses(connect: Connect) -> None:
    answers = in_turn(fetched(batch_at(0)), fetched(), fetched(batch_at(5)), fetched(), fetched())
    with FakeBroker({ApiKey.FETCH: answers}) as fake:
        assert offsets_of(fetch_range(connect(fake.address), PLACE, 0, 100)) == [0, 5]
        assert positions(fake) == [0, 1, 1, 6, 6]


def test_a_log_that_ends_early_is_waited_for_while_it_grows(connect: Connect) -> None:
    growing = [fetched(watermark=n) for n in range(1, 9)]
    answers = in_turn(fetched(batch_at(0)), *growing, fetched(batch_at(1, 49)))
    with FakeBroker({ApiKey.FETCH: answers}) as fake:
        assert offsets_of(fetch_range(connect(fake.address), PLACE, 0, 50)) == [0, 1, 49]


def test_a_reader_of_committed_records_waits_for_open_transactions(connect: Connect) -> None:
    waiting, there = fetched(stable=1), fetched(batch_at(1), stable=2)
    with FakeBroker({ApiKey.FETCH: in_turn(waiting, waiting, waiting, there)}) as fake:
        assert offsets_of(fetch_range(connect(fake.address), PLACE, 1, 2, isolation=1)) == [1]
        assert fake.asked(ApiKey.FETCH)[0].message.isolation_level == 1  # type: ignore[attr-defined]


def test_an_offset_out_of_range_for_a_moment_is_asked_for_again(connect: Connect) -> None:
    """A new leader may not yet know how far the log is committed."""
    row = ListOffsetsPartitionResponse(partition_index=0, offset=50)
    ends = ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=TOPIC, partitions=[row])])
    out = fetched(code=ErrorCode.OFFSET_OUT_OF_RANGE)
    handlers = {ApiKey.FETCH: in_turn(out, fetched(batch_at(50))), ApiKey.LIST_OFFSETS: in_turn(ends)}
    with FakeBroker(handlers) as fake:
        assert offsets_of(fetch_range(connect(fake.address), PLACE, 50, 51)) == [50]
    handlers[ApiKey.FETCH] = in_turn(out)
    with FakeBroker(handlers) as fake, pytest.raises(OffsetGone) as gone:
        list(fetch_range(connect(fake.address), PLACE, 49, 51))
    assert (gone.value.wanted, gone.value.earliest) == (49, 50)


# --- wrong responses


def test_half_a_batch_at_the_end_is_cut_off_and_asked_for_again(connect: Connect) -> None:
    answers = in_turn(fetched(batch_at(0) + batch_at(1)[:-1]), fetched(batch_at(1) + batch_at(2)[:20]))
    with FakeBroker({ApiKey.FETCH: answers}) as fake:
        assert offsets_of(fetch_range(connect(fake.address), PLACE, 0, 2)) == [0, 1]
        assert positions(fake) == [0, 1]


def test_a_response_with_only_half_a_batch_is_requested_with_a_larger_size(connect: Connect) -> None:
    whole = batch_at(0, size=10_000)

    def as_much_as_asked(request: Request) -> Answer:
        return fetched(whole[: request.message.max_bytes])  # type: ignore[attr-defined]

    with FakeBroker({ApiKey.FETCH: as_much_as_asked}) as fake:
        assert offsets_of(fetch_range(connect(fake.address), PLACE, 0, 1, fetch_bytes=1_000)) == [0]
        cluster = connect(fake.address, max_response_bytes=12_000)
        with pytest.raises(Garbled, match=r"larger than 7904 bytes; raise max_response_bytes"):
            list(fetch_range(cluster, PLACE, 0, 1, fetch_bytes=1_000))


def _with_magic(batch: bytes, magic: int) -> bytes:
    return batch[:16] + bytes([magic]) + batch[17:]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (fetched(batch_at(0), partition=1), "other partitions"),
        (FetchResponse(responses=[FetchableTopicResponse(topic="other")]), "other partitions"),
        (fetched(_with_magic(batch_at(5), 1)), "magic=1"),
        (fetched(batch_at(5)[:8] + b"\0\0\0\1" + batch_at(5)[12:]), "batch_length=1"),
        (fetched(batch_at(3)), "the batches end at 4"),
    ],
)
def test_an_invalid_response_is_an_error(connect: Connect, answer: Message, reason: str) -> None:
    with FakeBroker({ApiKey.FETCH: in_turn(answer)}) as fake:
        with pytest.raises(Garbled, match=reason):
            list(fetch_range(connect(fake.address), PLACE, 5, 10))
        assert len(positions(fake)) == 1


def test_a_version_that_names_topics_is_used(connect: Connect) -> None:
    with FakeBroker({ApiKey.FETCH: in_turn(fetched(batch_at(0)))}) as fake:
        assert offsets_of(fetch_range(connect(fake.address), PLACE, 0, 1)) == [0]
        assert fake.asked(ApiKey.FETCH)[0].version == 12
    told = pytest.raises(Refused, match=r"FETCH.*versions 13 to 18, this client 4 to 12")
    with FakeBroker({ApiKey.API_VERSIONS: lambda _: versions(fetch=(13, 18))}) as fake, told:
        list(fetch_range(connect(fake.address), PLACE, 0, 1))


def test_the_next_request_is_sent_before_a_chunk_is_returned(connect: Connect) -> None:
    with FakeBroker({ApiKey.FETCH: in_turn(fetched(batch_at(0)), fetched(batch_at(1)))}) as fake:
        cluster = connect(fake.address)
        reading = fetch_range(cluster, PLACE, 0, 2)
        next(reading)
        fake.wait_for(ApiKey.FETCH, 2)
        assert positions(fake) == [0, 1]
        assert offsets_of(reading) == [1]
        assert len(positions(fake)) == 2, "nothing is asked for after the end"


def test_an_abandoned_reader_leaves_no_response_behind(connect: Connect) -> None:
    with FakeBroker({ApiKey.FETCH: in_turn(fetched(batch_at(0)), fetched(batch_at(1)))}) as fake:
        cluster = connect(fake.address)
        reading = fetch_range(cluster, PLACE, 0, 2)
        next(reading)
        reading.close()
        assert list(cluster.topics([TOPIC])) == [TOPIC]
        assert fake.connections == 2


def test_a_compacted_log_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch, connect: Connect) -> None:
    monkeypatch.setattr("penstock.node.housekeeping.ROUND_SECONDS", 0.02)
    configs = {
        "cleanup.policy": "compact",
        "internal.segment.bytes": "1000",
        "min.cleanable.dirty.ratio": "0",
    }
    tp = TopicPartition("compacted", 0)
    with Broker(http=None) as broker:
        cluster = connect(broker.bootstrap_servers)
        cluster.create_topic(tp.topic, 1, configs)
        for n in range(50):
            record = Record(0, 1_000, b"key %d" % (n % 5), b"x" * 100)
            append(cluster, tp, build_batch([record]))
        left = list(range(50))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(left) > 20 and time.monotonic() < deadline:
            left = offsets_of(fetch_range(cluster, tp, 0, 50, fetch_bytes=1))
        assert len(left) <= 20
        assert left[-1] == 49
