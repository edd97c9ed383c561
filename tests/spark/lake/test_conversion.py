"""An archive of the old format becomes Delta tables: a small one that the old code has made, with leftovers of a crash.

It has records 0 to 14 of `orders` (three partitions, in turn, a second apart, from six seconds before 2026 on), one of
`payments`, and the topic `empty`.
"""

import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ConfigError
from penstock.spark import convert_archive
from penstock.spark.lake import conversion
from penstock.spark.lake.delta_table import DeltaTopicTable
from penstock.spark.lake.folder import Lake, state_of
from penstock.spark.lake.old_archive import OldChange, OldState, load_old_archive
from penstock.spark.problems import ArchiveError
from penstock.types import TopicPartition

OLD = Path(__file__).with_name("archive-before-delta.tar.xz")
EVENING_US = (1_767_225_600 - 6) * 1_000_000


@pytest.fixture
def old(tmp_path: Path) -> str:
    with tarfile.open(OLD) as packed:
        packed.extractall(tmp_path, filter="data")
    return str(tmp_path / "old-archive")


def expected(number: int) -> dict[str, Any]:
    """Record `number` of `orders`, without its key."""
    return {
        "topic": "orders",
        "partition": number % 3,
        "offset": number // 3,
        "value": None if number % 7 == 0 else b"v%d" % number,
        "timestamp": EVENING_US + number * 1_000_000,
        "headers": [{"key": "n", "value": b"%d" % number}, {"key": "empty", "value": None}]
        if number % 2
        else None,
        "date": "2025-12-31" if number < 6 else "2026-01-01",
    }


def rows(path: str, topic: str) -> list[dict[str, Any]]:
    table = Lake(path).table(topic)
    assert isinstance(table, DeltaTopicTable)
    found = table.delta.to_pyarrow_table()
    times = found["timestamp"].cast(pa.int64())
    found = found.set_column(found.schema.get_field_index("timestamp"), "timestamp", times)
    found = found.set_column(found.schema.get_field_index("date"), "date", found["date"].cast(pa.string()))
    return sorted(found.to_pylist(), key=lambda row: row["timestamp"])


def check_converted(path: str) -> None:
    found = [{name: row[name] for name in expected(0)} for row in rows(path, "orders")]
    assert found == [expected(number) for number in range(15)]
    assert [row["value"] for row in rows(path, "payments")] == [b"paid"]
    state = state_of(Lake(path).tables())
    assert state.positions == {
        **{TopicPartition("orders", number): 5 for number in range(3)},
        TopicPartition("payments", 0): 1,
    }
    assert {topic: facts.partitions for topic, facts in state.topics.items()} == {
        "orders": 3, "payments": 1, "empty": 2,
    }  # fmt: skip
    assert sorted(os.listdir(path)) == ["empty", "orders", "payments"]


def test_a_converted_archive_has_the_same_records_ends_and_topics(old: str) -> None:
    ids = {topic: facts.topic_id for topic, facts in load_old_archive(old).topics.items()}
    done = convert_archive(old)
    assert (done.topics, done.rows) == (("empty", "orders", "payments"), 16)
    check_converted(old)
    assert {name: table.topic_id for name, table in Lake(old).tables().items()} == ids


@pytest.mark.parametrize("works_first", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("owner", "name"),
    [(DeltaTopicTable, "append"), (os, "rename"), (conversion, "_delete_old")],
    ids=["commit", "switch", "delete"],
)
def test_a_conversion_that_is_killed_goes_on_with_the_next_call(
    old: str, owner: Any, name: str, works_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole: Callable[..., Any] = getattr(owner, name)

    def broken(*arguments: Any, **settings: Any) -> None:
        if works_first:
            whole(*arguments, **settings)
        raise RuntimeError("the machine is gone")

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, broken)
        with pytest.raises(RuntimeError):
            convert_archive(old)
    if os.path.exists(os.path.join(old, "_penstock")):
        convert_archive(old)
    check_converted(old)


def test_a_folder_without_an_old_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="old format"):
        convert_archive(str(tmp_path))


def test_an_old_log_that_is_not_whole_is_refused() -> None:
    with pytest.raises(ArchiveError, match="lacks change 2"):
        OldState().after([OldChange(sequence=1), OldChange(sequence=3)])
    with pytest.raises(ArchiveError, match="nothing-like-it"):
        OldState().after([OldChange(sequence=1, removed=("nothing-like-it",))])


def test_a_damaged_or_newer_log_is_named(old: str) -> None:
    change = Path(old, "_penstock", "log", f"{8:020d}.json")
    for content, said in (
        (b'{"sequence": "one"}', f"{8:020d}.json"),
        (b'{"version": 2, "sequence": 8}', "format 2"),
    ):
        change.write_bytes(content)
        with pytest.raises(ArchiveError, match=said):
            convert_archive(old)
