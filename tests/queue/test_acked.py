"""What everybody has acked: never what somebody has not, and all of it once all who know have spoken."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from penstock.queue.acked import Keeper, Line, Poll, QueueStats, Reign, acked_before
from penstock.types import GroupId

TOPIC, OTHER = UUID(int=1), UUID(int=2)
PLACE = GroupId(TOPIC, 0)
PARTITIONS = 3
PLACES = [GroupId(TOPIC, index) for index in range(PARTITIONS)]
GROUPS, QUEUES = Keeper("groups", 0), Keeper("queues", 0)


def asked(*places: GroupId) -> Poll:
    """Groups are kept on node 1 in term 5, queues on node 2 in term 6."""
    return Poll({GROUPS: Reign(1, 5), QUEUES: Reign(2, 6)}, places or [PLACE])


# --- counting


def test_a_group_has_acked_nothing_where_it_has_committed_nothing() -> None:
    tally = QueueStats(PLACES)
    tally.group(TOPIC, {0: 7, 2: 9})
    assert [tally.lines[place] for place in PLACES] == [Line(1, 7), Line(1, 0), Line(1, 9)]


def test_only_what_was_asked_for_is_counted() -> None:
    tally = QueueStats([PLACE])
    tally.group(OTHER, {0: 7})
    tally.queue("q", TOPIC, 1, 7)
    assert tally.lines == {}
    tally.queue("q", TOPIC, 0, 7)
    assert tally.lines == {PLACE: Line(1, 7)}


def test_the_slowest_holder_draws_the_line() -> None:
    tally = QueueStats([PLACE])
    for offset in (9, 4, 6):
        tally.queue("q", TOPIC, 0, offset)
    assert tally.lines == {PLACE: Line(3, 4)}


# --- queues on partitions that came later


def test_a_queue_has_done_nothing_on_partitions_where_it_has_not_begun() -> None:
    tally = QueueStats(PLACES)
    tally.queue("busy", TOPIC, 0, 7)
    tally.queue("busy", TOPIC, 1, 8)
    tally.queue("away", TOPIC, 0, 9)
    tally.queue("elsewhere", OTHER, 0, 9)
    assert [tally.line(place) for place in PLACES] == [Line(2, 7), Line(2, 0), Line(2, 0)]


def test_where_a_queue_has_not_begun_is_known_when_all_its_keepers_have_spoken() -> None:
    """One keeper has its state on one partition, the other on another."""
    poll = asked(*PLACES)
    poll.heard(1, {GROUPS: 5}, {PLACES[0]: Line(1, 4)}, {TOPIC: {"q": [0]}})
    poll.heard(2, {QUEUES: 6}, {PLACES[1]: Line(1, 6)}, {TOPIC: {"q": [1]}})
    assert [poll.line(place) for place in PLACES] == [Line(1, 4), Line(1, 6), Line(1, 0)]


def test_a_queue_on_a_partition_that_was_not_asked_for_counts_on_those_that_were() -> None:
    tally = QueueStats([PLACES[1]])
    tally.queue("away", TOPIC, 0, 9)
    assert tally.line(PLACES[1]) == Line(1, 0)
    assert tally.begun == {TOPIC: {"away": {0}}}


# --- polls


def test_a_poll_counts_when_all_keepers_have_answered() -> None:
    poll = asked()
    poll.heard(1, {GROUPS: 5}, {PLACE: Line(1, 8)}, {})
    assert not poll.counts(poll.keepers)
    assert poll.missing == [QUEUES]
    assert poll.line(PLACE) is None
    poll.heard(2, {QUEUES: 6}, {PLACE: Line(2, 3)}, {})
    assert poll.counts(poll.keepers)
    assert poll.line(PLACE) == Line(3, 3)


def test_an_answer_of_another_term_or_another_node_does_not_count() -> None:
    for node, term in ((1, 4), (1, 6), (3, 5)):
        poll = asked()
        poll.heard(2, {QUEUES: 6}, {}, {})
        poll.heard(node, {GROUPS: term}, {PLACE: Line(1, 8)}, {})
        assert not poll.counts(poll.keepers)
        assert poll.line(PLACE) is None


def test_a_poll_is_void_when_a_keeper_has_moved_or_come_up_meanwhile() -> None:
    poll = asked()
    poll.heard(1, {GROUPS: 5}, {PLACE: Line(1, 8)}, {})
    poll.heard(2, {QUEUES: 6}, {}, {})
    assert poll.counts({GROUPS: Reign(1, 5), QUEUES: Reign(2, 6)})
    assert not poll.counts({GROUPS: Reign(1, 5), QUEUES: Reign(3, 7)})
    assert not poll.counts({**poll.keepers, Keeper("queues", 1): Reign(2, 1)})


def test_each_node_is_asked_once_however_much_it_keeps() -> None:
    poll = Poll({GROUPS: Reign(2, 5), QUEUES: Reign(2, 6), Keeper("queues", 1): Reign(1, 1)}, [PLACE])
    assert poll.nodes == [1, 2]


# --- deciding


def test_a_partition_that_nobody_is_on_keeps_everything() -> None:
    assert acked_before(None, []) == 0
    assert acked_before(Line(0, 9), []) == 0


def test_queues_at_work_have_a_say_whatever_their_keeper_said_before() -> None:
    line = Line(2, 9)
    assert acked_before(line, []) == 9
    assert acked_before(line, [12, 5]) == 5
    assert acked_before(line, [12, None]) == 0


def test_a_place_before_the_first_offset_means_nothing() -> None:
    assert acked_before(Line(1, -1), []) == 0


# --- any cluster

Offsets = dict[int, int]
offsets = st.dictionaries(st.integers(0, PARTITIONS - 1), st.integers(0, 50), min_size=1)
keepers = st.integers(0, 3).map(lambda index: Keeper("groups", index))
reigns = st.tuples(st.integers(1, 3), st.integers(1, 4)).map(lambda pair: Reign(*pair))


@given(
    holders=st.lists(st.tuples(keepers, offsets), max_size=8),
    truth=st.fixed_dictionaries({Keeper("groups", index): reigns for index in range(4)}),
    assumed=st.dictionaries(keepers, reigns),
    silent=st.sets(st.integers(1, 3)),
)
def test_nothing_goes_that_somebody_has_not_acked_and_all_else_goes_once_everybody_is_heard(
    holders: list[tuple[Keeper, Offsets]],
    truth: dict[Keeper, Reign],
    assumed: dict[Keeper, Reign],
    silent: set[int],
) -> None:
    """The asker may be wrong about who keeps what, and some nodes do not answer; each that does tells what it keeps."""
    believed = {**truth, **assumed}
    poll = Poll(believed, PLACES)
    for node in poll.nodes:
        kept = {keeper: reign.term for keeper, reign in truth.items() if reign.node == node}
        tally = QueueStats(PLACES)
        for keeper, acked in holders:
            if keeper in kept:
                tally.group(TOPIC, acked)
        if node not in silent:
            poll.heard(node, kept, tally.lines, {})
    lowest = {
        place: min((acked.get(place.partition, 0) for _, acked in holders), default=0) for place in PLACES
    }
    deletable = {place: acked_before(poll.line(place), []) for place in PLACES}
    assert all(deletable[place] <= lowest[place] for place in PLACES)
    if believed == truth and not silent & set(poll.nodes):
        assert poll.counts(truth)
        assert deletable == lowest
