"""Replay of an archive into topics."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from penstock.errors import ConfigError
from penstock.spark import BatchProgress, PipelineError, Replayed, Schedule, Selection, replay
from penstock.spark.pipelines.replay_state import ReplayState, StateFile

from .conftest import EVENING_MS, Shop, plain


def again(shop: Shop, **settings: Any) -> Replayed:
    return replay(shop.spark, shop.path, bootstrap_servers=shop.bootstrap_servers, **settings)


def test_a_replayed_topic_is_the_original_record_by_record(shop: Shop, read: Callable[..., Any]) -> None:
    shop.sell(0, 200)
    shop.archive(options={"maxOffsetsPerTrigger": "60"})
    done = again(shop, suffix=".again")
    target = shop.topic + ".again"
    assert (done.rows, done.created, done.resumed, done.finished) == (200, (target,), False, True)
    assert done.rows_by_topic == {target: 200}
    assert plain(read(target, includeHeaders="true")) == plain(read(shop.topic, includeHeaders="true"))


def test_a_time_and_an_offset_range_select_the_replayed_records(shop: Shop, read: Callable[..., Any]) -> None:
    shop.sell(0, 12)
    shop.archive()
    begin = datetime.fromtimestamp(EVENING_MS / 1000, UTC)
    wish = Selection(
        from_time=begin + timedelta(seconds=3), to_time=begin + timedelta(seconds=9), to_offset=2
    )
    target = shop.topic + "-some"
    assert again(shop, to_topic=target, selection=wish).rows == 3
    # Records 3 to 8 by time; of these offset 2 is out, which leaves offset 1 of each partition.
    assert [bytes(row.value) if row.value else None for row in read(target).orderBy("partition").collect()] == [
        b"v3", b"v4", b"v5",
    ]  # fmt: skip


def test_a_topic_with_records_is_written_to_only_on_request(shop: Shop, read: Callable[..., Any]) -> None:
    shop.sell(0, 6)
    shop.archive()
    with pytest.raises(PipelineError, match="already has records"):
        again(shop)
    again(shop, append=True)
    assert read(shop.topic).count() == 12


def committed_rows(shop: Shop, read: Callable[..., Any], topic: str) -> list[tuple[Any, ...]]:
    columns = ("partition", "key", "value", "timestamp", "headers")
    return plain(read(topic, includeHeaders="true", kafka__isolation__level="read_committed"), *columns)


def original(read: Callable[..., Any], topic: str) -> list[tuple[Any, ...]]:
    return plain(read(topic, includeHeaders="true"), "partition", "key", "value", "timestamp", "headers")


def test_a_stopped_replay_continues_when_it_is_asked_for_again(shop: Shop, read: Callable[..., Any]) -> None:
    shop.sell(0, 60)
    shop.archive()
    seen: list[BatchProgress] = []
    stopped = Schedule(on_batch=seen.append, stop=lambda: len(seen) >= 2)
    first = again(shop, suffix=".again", step_offsets=8, schedule=stopped)
    assert (first.rows, first.finished) == (48, False)
    assert [each.lag for each in seen] == [36, 12]
    shop.sell(60, 30)
    shop.archive()  # the replay has the end that it began with
    second = again(shop, suffix=".again", schedule=Schedule(on_batch=seen.append))
    assert (second.rows, second.resumed, second.finished) == (60, True, True)
    assert sum(each.rows for each in seen) == 60
    expected = [row for row in original(read, shop.topic) if row[3].timestamp() * 1000 < EVENING_MS + 60_000]
    assert committed_rows(shop, read, shop.topic + ".again") == expected


def test_a_step_that_was_committed_and_not_noted_is_not_written_again(
    shop: Shop, read: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.sell(0, 30)
    shop.archive()
    save = StateFile.save

    def dies(file: StateFile, state: ReplayState) -> None:
        if state.steps_done == 2:
            raise KeyboardInterrupt
        save(file, state)

    monkeypatch.setattr(StateFile, "save", dies)
    with pytest.raises(KeyboardInterrupt):
        again(shop, suffix=".again", step_offsets=4)
    monkeypatch.undo()
    done = again(shop, suffix=".again")
    assert (done.rows, done.resumed) == (30, True)
    assert committed_rows(shop, read, shop.topic + ".again") == original(read, shop.topic)


def test_a_target_that_was_created_again_is_replayed_from_the_beginning(
    shop: Shop, read: Callable[..., Any]
) -> None:
    shop.sell(0, 30)
    shop.archive()
    seen: list[BatchProgress] = []
    again(
        shop,
        suffix=".again",
        step_offsets=4,
        schedule=Schedule(on_batch=seen.append, stop=lambda: bool(seen)),
    )
    target = shop.topic + ".again"
    admin = AdminClient({"bootstrap.servers": shop.bootstrap_servers})
    admin.delete_topics([target])[target].result(60)
    done = again(shop, suffix=".again")
    assert (done.rows, done.resumed, done.created) == (30, False, (target,))
    assert committed_rows(shop, read, target) == original(read, shop.topic)


def test_a_finished_replay_leaves_no_state_and_is_not_continued(shop: Shop, tmp_path: Path) -> None:
    shop.sell(0, 6)
    shop.archive()
    again(shop, suffix=".again", checkpoint=str(tmp_path / "state"))
    assert list((tmp_path / "state").iterdir()) == []
    with pytest.raises(PipelineError, match="already has records"):
        again(shop, suffix=".again", checkpoint=str(tmp_path / "state"))


def test_a_state_that_cannot_be_read_or_written_is_told(shop: Shop, tmp_path: Path) -> None:
    shop.sell(0, 6)
    shop.archive()
    (tmp_path / "file").touch()
    with pytest.raises(PipelineError, match="name another folder"):
        again(shop, suffix=".again", checkpoint=str(tmp_path / "file" / "folder"))
    with pytest.raises(ConfigError, match="a folder on a disk of the driver"):
        again(shop, suffix=".again", checkpoint="s3://bucket/state")
    with pytest.raises(ConfigError, match="step_offsets=0"):
        again(shop, suffix=".again", step_offsets=0)
    with pytest.raises(ConfigError, match="every"):
        again(shop, suffix=".again", schedule=Schedule(every="1s"))


def test_an_invalid_replay_is_refused(shop: Shop, make_topic: Callable[..., str]) -> None:
    shop.sell(0, 1)
    shop.archive()
    narrow = make_topic("narrow", partitions=2)
    with pytest.raises(PipelineError, match="has 2 partitions"):
        again(shop, to_topic=narrow)
    later = datetime(2026, 1, 2, tzinfo=UTC)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"topics": "no-such-topic"}, "no-such-topic"),
        ({"to_topic": "a", "suffix": "b"}, "either"),
        ({"to_topic": "not a name"}, "to_topic"),
        ({"selection": Selection(from_time=datetime(2026, 1, 1))}, "time zone"),
        ({"selection": Selection(from_offset=5, to_offset=5)}, "to_offset=5"),
        ({"selection": Selection(from_time=later, to_time=later - timedelta(days=1))}, "to_time"),
    ]
    for settings, said in wrong:
        with pytest.raises(ConfigError, match=said):
            again(shop, **settings)
