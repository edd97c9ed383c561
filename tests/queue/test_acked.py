"""Records that all consumers have acked: deleted only on complete answers, and then all of them."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from penstock.queue.acked import Poll, Progress, ProgressSource, ProgressTable, SourceLeader, acked_before
from penstock.types import GroupId

TOPIC, OTHER = UUID(int=1), UUID(int=2)
PARTITION = GroupId(TOPIC, 0)
COUNT = 3
PARTITIONS = [GroupId(TOPIC, index) for index in range(COUNT)]
GROUPS, QUEUES = ProgressSource("groups", 0), ProgressSource("queues", 0)


def asked(*partitions: GroupId) -> Poll:
    """Groups are kept on node 1 in term 5, queues on node 2 in term 6."""
    return Poll({GROUPS: SourceLeader(1, 5), QUEUES: SourceLeader(2, 6)}, partitions or [PARTITION])


# --- counting


def test_a_group_has_acked_nothing_where_it_has_committed_nothing() -> None:
    table = ProgressTable(PARTITIONS)
    table.add_group(TOPIC, {0: 7, 2: 9})
    assert [table.reported[partition] for partition in PARTITIONS] == [
        Progress(1, 7),
        Progress(1, 0),
        Progress(1, 9),
    ]


def test_only_the_polled_partitions_are_counted() -> None:
    table = ProgressTable([PARTITION])
    table.add_group(OTHER, {0: 7})
    table.add_queue("q", TOPIC, 1, 7)
    assert table.reported == {}
    table.add_queue("q", TOPIC, 0, 7)
    assert table.reported == {PARTITION: Progress(1, 7)}


def test_the_slowest_consumer_decides() -> None:
    table = ProgressTable([PARTITION])
    for offset in (9, 4, 6):
        table.add_queue("q", TOPIC, 0, offset)
    assert table.reported == {PARTITION: Progress(3, 4)}


# --- queues on added partitions


def test_a_queue_has_done_nothing_on_partitions_where_it_has_not_started() -> None:
    table = ProgressTable(PARTITIONS)
    table.add_queue("busy", TOPIC, 0, 7)
    table.add_queue("busy", TOPIC, 1, 8)
    table.add_queue("away", TOPIC, 0, 9)
    table.add_queue("elsewhere", OTHER, 0, 9)
    assert [table.progress(partition) for partition in PARTITIONS] == [
        Progress(2, 7),
        Progress(2, 0),
        Progress(2, 0),
    ]


def test_partitions_without_queue_state_are_known_when_all_sources_have_answered() -> None:
    """One source has its state on one partition, the other on another."""
    poll = asked(*PARTITIONS)
    poll.add_answer(1, {GROUPS: 5}, {PARTITIONS[0]: Progress(1, 4)}, {TOPIC: {"q": [0]}})
    poll.add_answer(2, {QUEUES: 6}, {PARTITIONS[1]: Progress(1, 6)}, {TOPIC: {"q": [1]}})
    assert [poll.progress(partition) for partition in PARTITIONS] == [
        Progress(1, 4),
        Progress(1, 6),
        Progress(1, 0),
    ]


def test_a_queue_on_an_unpolled_partition_counts_on_the_polled_ones() -> None:
    table = ProgressTable([PARTITIONS[1]])
    table.add_queue("away", TOPIC, 0, 9)
    assert table.progress(PARTITIONS[1]) == Progress(1, 0)
    assert table.started == {TOPIC: {"away": {0}}}


# --- polls


def test_a_poll_is_valid_when_all_sources_have_answered() -> None:
    poll = asked()
    poll.add_answer(1, {GROUPS: 5}, {PARTITION: Progress(1, 8)}, {})
    assert not poll.is_valid(poll.sources)
    assert poll.missing == [QUEUES]
    assert poll.progress(PARTITION) is None
    poll.add_answer(2, {QUEUES: 6}, {PARTITION: Progress(2, 3)}, {})
    assert poll.is_valid(poll.sources)
    assert poll.progress(PARTITION) == Progress(3, 3)


def test_an_answer_of_another_term_or_another_node_does_not_count() -> None:
    for node, term in ((1, 4), (1, 6), (3, 5)):
        poll = asked()
        poll.add_answer(2, {QUEUES: 6}, {}, {})
        poll.add_answer(node, {GROUPS: term}, {PARTITION: Progress(1, 8)}, {})
        assert not poll.is_valid(poll.sources)
        assert poll.progress(PARTITION) is None


def test_a_poll_is_invalid_when_a_source_has_moved_or_appeared_meanwhile() -> None:
    poll = asked()
    poll.add_answer(1, {GROUPS: 5}, {PARTITION: Progress(1, 8)}, {})
    poll.add_answer(2, {QUEUES: 6}, {}, {})
    assert poll.is_valid({GROUPS: SourceLeader(1, 5), QUEUES: SourceLeader(2, 6)})
    assert not poll.is_valid({GROUPS: SourceLeader(1, 5), QUEUES: SourceLeader(3, 7)})
    assert not poll.is_valid({**poll.sources, ProgressSource("queues", 1): SourceLeader(2, 1)})


def test_each_node_is_asked_once_for_all_its_sources() -> None:
    poll = Poll(
        {
            GROUPS: SourceLeader(2, 5),
            QUEUES: SourceLeader(2, 6),
            ProgressSource("queues", 1): SourceLeader(1, 1),
        },
        [PARTITION],
    )
    assert poll.nodes == [1, 2]


# --- deciding


def test_a_partition_without_consumers_keeps_everything() -> None:
    assert acked_before(None, []) == 0
    assert acked_before(Progress(0, 9), []) == 0


def test_queues_that_the_leader_drives_count_independent_of_their_source() -> None:
    progress = Progress(2, 9)
    assert acked_before(progress, []) == 9
    assert acked_before(progress, [12, 5]) == 5
    assert acked_before(progress, [12, None]) == 0


def test_a_negative_offset_deletes_nothing() -> None:
    assert acked_before(Progress(1, -1), []) == 0


# --- any cluster

Offsets = dict[int, int]
offsets = st.dictionaries(st.integers(0, COUNT - 1), st.integers(0, 50), min_size=1)
sources = st.integers(0, 3).map(lambda index: ProgressSource("groups", index))
leaders = st.tuples(st.integers(1, 3), st.integers(1, 4)).map(lambda pair: SourceLeader(*pair))


@given(
    consumers=st.lists(st.tuples(sources, offsets), max_size=8),
    truth=st.fixed_dictionaries({ProgressSource("groups", index): leaders for index in range(4)}),
    assumed=st.dictionaries(sources, leaders),
    silent=st.sets(st.integers(1, 3)),
)
def test_only_records_that_all_consumers_acked_are_deleted_and_all_of_them_once_all_have_answered(
    consumers: list[tuple[ProgressSource, Offsets]],
    truth: dict[ProgressSource, SourceLeader],
    assumed: dict[ProgressSource, SourceLeader],
    silent: set[int],
) -> None:
    """The asker may be wrong about leaders, and some nodes do not answer; the others report their sources."""
    believed = {**truth, **assumed}
    poll = Poll(believed, PARTITIONS)
    for node in poll.nodes:
        kept = {source: leader.term for source, leader in truth.items() if leader.node == node}
        table = ProgressTable(PARTITIONS)
        for source, acked in consumers:
            if source in kept:
                table.add_group(TOPIC, acked)
        if node not in silent:
            poll.add_answer(node, kept, table.reported, {})
    lowest = {
        partition: min((acked.get(partition.partition, 0) for _, acked in consumers), default=0)
        for partition in PARTITIONS
    }
    deletable = {partition: acked_before(poll.progress(partition), []) for partition in PARTITIONS}
    assert all(deletable[partition] <= lowest[partition] for partition in PARTITIONS)
    if believed == truth and not silent & set(poll.nodes):
        assert poll.is_valid(truth)
        assert deletable == lowest
