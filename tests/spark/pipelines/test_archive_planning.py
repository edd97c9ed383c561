"""Where an archive goes on, and who may write to it: decided without a JVM or a broker."""

from penstock.spark import options as source_options
from penstock.spark.pipelines.archiving import _pinned
from penstock.spark.pipelines.manifest import State, TopicFacts
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
