"""Where an archive goes on, and who may write to it: decided without a JVM or a broker."""

import msgspec
import pytest

from penstock.spark import options as source_options
from penstock.spark.pipelines.archiving import _pinned
from penstock.spark.pipelines.log import KEPT_CHANGES, LOG_FOLDER, ArchiveLog
from penstock.spark.pipelines.manifest import Manifest, State, TopicFacts
from penstock.spark.pipelines.problems import AnotherWriter
from penstock.spark.pipelines.writer import ArchiveWriter

from .fakes import fake_planner, memory_files

LATEST = source_options.parse(
    {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribePattern": ".*", "startingOffsets": "latest"},
    streaming=True,
)


def test_a_topic_that_came_in_mid_run_goes_on_where_it_is_archived_to() -> None:
    planner = fake_planner({"known": "k", "in-mid-run": "m", "new": "n"}, latest=150)
    state = State(
        topics={"known": TopicFacts(topic_id="k", partitions=1)},
        through={"known": {"0": 7}, "in-mid-run": {"0": 100}},
    )
    assert _pinned(state, planner.layout(require_all=True), planner, LATEST) == {"new": {"0": 150}}


def test_a_claim_that_is_tried_again_does_not_move_what_another_writer_has_archived() -> None:
    files = memory_files()
    slow, quick = ArchiveWriter(files), ArchiveWriter(files)
    quick.claim({"orders": TopicFacts(topic_id="o", partitions=2)}, {"orders": {"0": 5}})
    slow.claim({"orders": TopicFacts(topic_id="o", partitions=2)}, {"orders": {"0": 9, "1": 9}})
    assert slow.state.through == {"orders": {"0": 5}}
    assert slow.state.writer == slow.name


def change(sequence: int, writer: str) -> Manifest:
    return Manifest(sequence=sequence, writer=writer, kind="batch", at="")


def test_a_writer_that_slept_until_its_number_was_free_again_is_told_that_it_is_not_the_only_one() -> None:
    files = memory_files()
    log = ArchiveLog(files)
    log.append(change(1, "sleeper"))
    for sequence in range(2, KEPT_CHANGES + 51):
        log.append(change(sequence, "busy"))
        log.tidy(log.load())
    before = files.names(LOG_FOLDER)
    assert f"{2:020d}.json" not in [each.name for each in before]
    with pytest.raises(AnotherWriter, match="writer busy"):
        log.append(change(2, "sleeper"))
    assert files.names(LOG_FOLDER) == before


def test_a_change_that_another_writer_built_upon_at_once_stays() -> None:
    files = memory_files()
    log, whole = ArchiveLog(files), files.create

    def overtaken(path: str, content: bytes) -> bool:
        done = whole(path, content)
        whole(f"{LOG_FOLDER}/{2:020d}.json", msgspec.json.encode(change(2, "next")))
        return done

    files.create = overtaken  # type: ignore[method-assign]
    log.append(change(1, "first"))
    assert (log.load().sequence, log.load().writer) == (2, "next")
