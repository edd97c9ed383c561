"""The assignors of consumer groups: complete, fair, and sticky."""

from collections.abc import Mapping
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from penstock.groups.consumer_assignors import ASSIGNORS, Target, range_, uniform
from penstock.groups.consumer_values import NOTHING, Assignment, MemberSubscription

ORDERS, REFUNDS, RETURNS = UUID(int=1), UUID(int=2), UUID(int=3)
TOPICS = st.dictionaries(st.sampled_from((ORDERS, REFUNDS, RETURNS)), st.integers(1, 12), min_size=1)
READERS = st.dictionaries(
    st.sampled_from([f"m{number}" for number in range(8)]),
    st.frozensets(st.sampled_from((ORDERS, REFUNDS, RETURNS))),
    min_size=1,
)


def subscribers(
    readers: Mapping[str, frozenset[UUID]], current: Mapping[str, Assignment] | None = None
) -> dict[str, MemberSubscription]:
    before = current or {}
    return {
        name: MemberSubscription(instance_id=None, topics=topics, current=before.get(name, NOTHING))
        for name, topics in readers.items()
    }


def same(*names: str) -> dict[str, frozenset[UUID]]:
    return dict.fromkeys(names, frozenset({ORDERS}))


def moved(before: Target, after: Target) -> int:
    """How many partitions have another owner, of those whose owner is still there."""
    owners = {partition: name for name, mine in after.items() for partition in mine}
    return sum(
        owners.get(partition) != name for name, mine in before.items() if name in after for partition in mine
    )


def counts(target: Target) -> list[int]:
    return sorted(len(mine) for mine in target.values())


@given(READERS, READERS, TOPICS, st.sampled_from(sorted(ASSIGNORS)))
def test_every_partition_that_somebody_reads_has_one_owner_that_reads_its_topic(
    before: dict[str, frozenset[UUID]],
    readers: dict[str, frozenset[UUID]],
    topics: dict[UUID, int],
    name: str,
) -> None:
    assign = ASSIGNORS[name]
    current = assign(subscribers(before), topics)
    target = assign(subscribers(readers, current), topics)
    assert target.keys() == readers.keys()
    given_out = [partition for mine in target.values() for partition in mine]
    read = {topic_id for topic_ids in readers.values() for topic_id in topic_ids & topics.keys()}
    assert sorted(given_out) == sorted(
        (topic_id, index) for topic_id in read for index in range(topics[topic_id])
    )
    assert all(topic_id in readers[member] for member, mine in target.items() for topic_id, _ in mine)


@given(READERS, TOPICS, st.sampled_from(sorted(ASSIGNORS)))
def test_an_assignment_that_is_computed_again_stays(
    readers: dict[str, frozenset[UUID]], topics: dict[UUID, int], name: str
) -> None:
    once = ASSIGNORS[name](subscribers(readers), topics)
    assert ASSIGNORS[name](subscribers(readers, once), topics) == once


@given(READERS, TOPICS)
def test_uniform_leaves_no_pair_of_readers_of_a_topic_that_could_be_evened(
    readers: dict[str, frozenset[UUID]], topics: dict[UUID, int]
) -> None:
    target = uniform(subscribers(readers), topics)
    for mine in target.values():
        for topic_id, _ in mine:
            others = [other for other in readers if topic_id in readers[other]]
            assert len(mine) - min(len(target[other]) for other in others) < 2


def test_uniform_moves_only_the_share_of_a_new_member() -> None:
    before = uniform(subscribers(same("a", "b", "c")), {ORDERS: 12})
    after = uniform(subscribers(same("a", "b", "c", "d"), before), {ORDERS: 12})
    assert counts(after) == [3, 3, 3, 3]
    assert moved(before, after) == 3


def test_uniform_moves_nothing_between_members_that_stay_when_one_leaves() -> None:
    before = uniform(subscribers(same("a", "b", "c", "d")), {ORDERS: 12})
    after = uniform(subscribers(same("a", "b", "c"), before), {ORDERS: 12})
    assert counts(after) == [4, 4, 4]
    assert moved(before, after) == 0


def test_uniform_spreads_each_topic_over_the_members() -> None:
    readers = dict.fromkeys("ab", frozenset({ORDERS, REFUNDS}))
    target = uniform(subscribers(readers), {ORDERS: 2, REFUNDS: 2})
    for mine in target.values():
        assert {topic_id for topic_id, _ in mine} == {ORDERS, REFUNDS}


def test_range_gives_contiguous_ranges_that_are_alike_for_topics_of_the_same_size() -> None:
    readers = dict.fromkeys("abc", frozenset({ORDERS, REFUNDS}))
    target = range_(subscribers(readers), {ORDERS: 7, REFUNDS: 7})
    for mine in target.values():
        orders, refunds = (
            sorted(index for topic_id, index in mine if topic_id == each) for each in (ORDERS, REFUNDS)
        )
        assert orders == refunds == list(range(orders[0], orders[-1] + 1))


def test_range_keeps_the_order_of_members_that_were_there_before() -> None:
    before = range_(subscribers(same("b", "c")), {ORDERS: 6})
    after = range_(subscribers(same("a", "b", "c"), before), {ORDERS: 6})
    assert after["b"] == {(ORDERS, 0), (ORDERS, 1)}
    assert after["c"] == {(ORDERS, 2), (ORDERS, 3)}
    assert after["a"] == {(ORDERS, 4), (ORDERS, 5)}
