"""Replay of an archive into topics."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.spark import PipelineError, Replayed, Selection, replay

from .conftest import EVENING_MS, Shop, plain


def again(shop: Shop, **settings: Any) -> Replayed:
    return replay(shop.spark, shop.path, bootstrap_servers=shop.bootstrap_servers, **settings)


def test_a_replayed_topic_is_the_original_record_by_record(shop: Shop, read: Callable[..., Any]) -> None:
    shop.sell(0, 200)
    shop.archive(options={"maxOffsetsPerTrigger": "60"})
    done = again(shop, suffix=".again")
    target = shop.topic + ".again"
    assert (done.rows, done.created) == (200, (target,))
    assert plain(read(target, includeHeaders="true")) == plain(read(shop.topic, includeHeaders="true"))


def test_a_time_and_an_offset_range_select_the_replayed_records(shop: Shop, read: Callable[..., Any]) -> None:
    shop.sell(0, 12)
    shop.archive()
    begin = datetime.fromtimestamp(EVENING_MS / 1000, UTC)
    wish = Selection(
        from_time=begin + timedelta(seconds=3), to_time=begin + timedelta(seconds=9), to_offset=2
    )
    target = shop.topic + "-some"
    again(shop, to_topic=target, selection=wish)
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
