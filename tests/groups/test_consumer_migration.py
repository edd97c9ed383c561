"""Groups with members move to the consumer protocol and back, and no partition is in two hands on the way."""

import pytest

from penstock.config import GroupSettings, Limits
from penstock.errors import ErrorCode
from penstock.groups import SyncResult
from penstock.groups.embedded_protocol import decode_assignment, decode_subscription, encode_assignment
from penstock.types import TopicPartition
from tests.groups.consumer_group_harness import ConsumerClient, ConsumerHarness, settled
from tests.groups.group_harness import GROUP, SESSION_MS, Client, subscription

ORDERS = [TopicPartition("orders", index) for index in range(4)]


def classic_group(harness: ConsumerHarness, *names: str, **about: object) -> list[Client]:
    """A stable group of the classic protocol, whose members share the topic `orders`."""
    clients = [harness.client(name, **about) for name in names]
    for client in clients:
        client.joins()
    for _ in range(3):
        for client in clients:
            if client.is_answered:
                client.joins()
    leader = next(client for client in clients if client.is_leader)
    shares = {client.member_id: ORDERS[at :: len(clients)] for at, client in enumerate(clients)}
    leader.syncs({member_id: encode_assignment(share) for member_id, share in shares.items()})
    for client in clients:
        client.syncs()
    return clients


def joins_again(client: Client) -> set[TopicPartition]:
    """An eager consumer that its heartbeat sends to join again: what it reads then."""
    if client.heartbeats() is ErrorCode.REBALANCE_IN_PROGRESS:
        client.joins()
        assert client.error is ErrorCode.NONE
    client.syncs()
    return assignment(client)


def assignment(client: Client) -> set[TopicPartition]:
    result = client.harness.replies[client.token]
    assert isinstance(result, SyncResult)
    assert result.error is ErrorCode.NONE
    found = decode_assignment(result.assignment)
    assert found is not None
    return set(found)


def types(harness: ConsumerHarness) -> list[str]:
    return [row.group_type for row in harness.coordinator.list_groups()]


def named(harness: ConsumerHarness, member: ConsumerClient) -> set[TopicPartition]:
    names = {topic.topic_id: name for name, topic in harness.cluster.topics.items()}
    return {TopicPartition(names[topic_id], index) for topic_id, index in member.owned}


# Upgrade


def test_members_of_the_classic_protocol_go_on_when_the_first_of_the_other_joins() -> None:
    harness = ConsumerHarness()
    ann, bob = classic_group(harness, "ann", "bob")
    ann.commits()
    generation = ann.generation
    eve = harness.member("eve")
    assert eve.reports().assignment == frozenset(), "the others have everything"
    assert eve.epoch == generation + 1
    assert types(harness) == ["consumer"]
    assert harness.offsets()
    assert ann.heartbeats() is ErrorCode.REBALANCE_IN_PROGRESS
    shares = [joins_again(ann), joins_again(bob)]
    settled(eve)
    shares.append(named(harness, eve))
    assert sorted(part for share in shares for part in share) == ORDERS
    assert sorted(map(len, shares)) == [1, 1, 2]
    assert ann.heartbeats() is bob.heartbeats() is ErrorCode.NONE
    assert ann.commits().error is ErrorCode.NONE


def test_a_partition_of_a_classic_member_waits_until_it_has_joined_again() -> None:
    harness = ConsumerHarness()
    (ann,) = classic_group(harness, "ann")
    eve = harness.member("eve").settles()
    settled(eve)
    assert eve.owned == frozenset()
    assert len(joins_again(ann)) == 2
    settled(eve)
    assert len(eve.owned) == 2


def test_a_cooperative_member_keeps_what_its_target_has_and_confirms_the_rest() -> None:
    harness = ConsumerHarness()
    (ann,) = classic_group(harness, "ann")
    eve = harness.member("eve").settles()
    protocol = ann.protocols[0]

    def joins_with(owned: set[TopicPartition]) -> set[TopicPartition]:
        ann.protocols = (type(protocol)(protocol.name, cooperative(owned)),)
        ann.joins()
        ann.syncs()
        return assignment(ann)

    kept = joins_with(set(ORDERS))
    assert len(kept) == 2
    settled(eve)
    assert eve.owned == frozenset(), "Ann has been told, and has not confirmed"
    assert ann.heartbeats() is ErrorCode.REBALANCE_IN_PROGRESS
    assert joins_with(kept) == kept
    settled(eve)
    assert named(harness, eve) == set(ORDERS) - kept


def cooperative(owned: set[TopicPartition]) -> bytes:
    """A subscription of version 1 that lists the partitions that the consumer has kept."""
    version_0 = subscription("orders")
    return b"\x00\x01" + version_0[2:] + encode_assignment(owned)[2:-4]


def test_a_classic_member_may_join_a_consumer_group() -> None:
    harness = ConsumerHarness()
    eve = harness.member("eve").settles()
    ann = harness.client("ann")
    ann.joins()
    assert ann.error is ErrorCode.NONE
    assert not ann.is_leader
    ann.syncs()
    assert assignment(ann) == set()
    settled(eve)
    assert len(joins_again(ann)) == 2
    described = {member.member_id: member.is_classic for member in harness.consumer_group().members}
    assert described == {"eve": False, ann.member_id: True}


def test_classic_members_survive_a_failover() -> None:
    harness = ConsumerHarness()
    (ann,) = classic_group(harness, "ann")
    eve = harness.member("eve").settles()
    joins_again(ann)
    settled(eve)
    restarted = harness.restarted()
    restarted.clients = harness.clients
    ann.harness = eve.harness = restarted
    assert ann.heartbeats() is ErrorCode.NONE
    ann.syncs()
    assert len(assignment(ann)) == 2
    assert eve.reports().error is ErrorCode.NONE


def test_a_classic_member_that_is_silent_or_does_not_join_again_is_removed() -> None:
    harness = ConsumerHarness()
    ann, bob = classic_group(harness, "ann", "bob")
    bob.rebalance_ms = 60_000
    eve = harness.member("eve").settles()
    for _ in range(16):
        harness.passes(SESSION_MS // 2)
        ann.heartbeats()
        eve.reports()
    assert harness.epochs().keys() == {"eve"}
    settled(eve)
    assert len(eve.owned) == 4
    assert ann.heartbeats() is bob.heartbeats() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_wrong_generation_and_an_unknown_member_are_refused() -> None:
    harness = ConsumerHarness()
    (ann,) = classic_group(harness, "ann")
    harness.member("eve").settles()
    ann.generation += 5
    assert ann.heartbeats() is ErrorCode.ILLEGAL_GENERATION
    assert ann.syncs().error is ErrorCode.ILLEGAL_GENERATION
    assert ann.commits().error is ErrorCode.ILLEGAL_GENERATION
    ann.member_id = "joe"
    assert ann.heartbeats() is ErrorCode.UNKNOWN_MEMBER_ID
    assert ann.leaves() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_takes_its_place_with_the_other_protocol() -> None:
    harness = ConsumerHarness()
    (ann,) = classic_group(harness, "ann", instance_id="one")
    again = harness.member("again", instance="one").settles()
    assert len(again.owned) == 4
    assert ann.heartbeats() is ErrorCode.FENCED_INSTANCE_ID
    assert harness.epochs().keys() == {"again"}


@pytest.mark.parametrize("instance", ["one", None])
def test_a_member_that_changes_the_protocol_need_not_join_again_with_the_old_one(
    instance: str | None,
) -> None:
    harness = ConsumerHarness()
    (ann,) = classic_group(harness, "ann", instance_id=instance)
    bob = harness.member("bob").settles()
    harness.passes(1_000)
    assert ann.heartbeats() is ErrorCode.REBALANCE_IN_PROGRESS
    assert ann.member_id is not None
    again = harness.member("ann-again" if instance else ann.member_id, instance=instance)
    settled(again, bob)
    epoch = harness.consumer_group().epoch
    for _ in range(100):
        harness.passes(5_000)
        settled(again, bob)
    assert harness.epochs() == {again.member_id: epoch, "bob": epoch}, "nobody was removed"


def test_open_requests_are_answered_when_a_group_moves() -> None:
    harness = ConsumerHarness()
    classic_group(harness, "ann")
    harness.client("bob").joins()
    assert harness.open_tokens, "Bob waits for Ann"
    harness.member("eve").settles()
    assert not harness.open_tokens


def test_a_group_of_another_kind_does_not_move() -> None:
    harness = ConsumerHarness()
    connect = harness.client("connect")
    connect.joins(protocol_type="connect")
    assert harness.member("eve").reports().error is ErrorCode.GROUP_ID_NOT_FOUND
    assert types(harness) == ["classic"]


@pytest.mark.parametrize("policy", ["downgrade", "disabled"])
def test_a_policy_may_forbid_the_upgrade(policy: str) -> None:
    harness = ConsumerHarness(GroupSettings(consumer_migration_policy=policy))  # type: ignore[arg-type]
    (ann,) = classic_group(harness, "ann")
    assert harness.member("eve").reports().error is ErrorCode.GROUP_ID_NOT_FOUND
    assert ann.heartbeats() is ErrorCode.NONE


def test_a_full_group_does_not_move() -> None:
    harness = ConsumerHarness(limits=Limits(max_group_members=1))
    classic_group(harness, "ann")
    assert harness.member("eve").reports().error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert types(harness) == ["classic"]


# Downgrade


def test_a_group_is_classic_again_when_the_last_member_of_the_consumer_protocol_has_left() -> None:
    harness = ConsumerHarness()
    ann, bob = classic_group(harness, "ann", "bob")
    eve = harness.member("eve").settles()
    joins_again(ann)
    joins_again(bob)
    settled(eve)
    epoch = harness.consumer_group().epoch
    eve.leaves()
    assert types(harness) == ["classic"]
    assert ann.heartbeats() is ErrorCode.REBALANCE_IN_PROGRESS
    ann.joins()
    bob.joins()
    assert ann.generation == bob.generation == epoch + 1
    restarted = harness.restarted()
    assert types(restarted) == ["classic"]


def test_a_member_that_is_silent_is_a_reason_for_the_downgrade_too() -> None:
    harness = ConsumerHarness()
    (ann,) = classic_group(harness, "ann")
    harness.member("eve").settles()
    joins_again(ann)
    for _ in range(10):
        harness.passes(SESSION_MS // 2)
        ann.heartbeats()
    assert types(harness) == ["classic"]
    assert [member.member_id for member in harness.group(GROUP).members] == [ann.member_id]


def test_a_policy_may_forbid_the_downgrade() -> None:
    harness = ConsumerHarness(
        GroupSettings(consumer_migration_policy="upgrade", consumer_assignment_interval_ms=0)
    )
    (ann,) = classic_group(harness, "ann")
    eve = harness.member("eve").settles()
    joins_again(ann)
    settled(eve)
    eve.leaves()
    assert types(harness) == ["consumer"]
    assert joins_again(ann) == set(ORDERS)


def test_a_downgrade_that_was_not_stored_is_done_again() -> None:
    harness = ConsumerHarness()
    (ann,) = classic_group(harness, "ann")
    eve = harness.member("eve").settles()
    joins_again(ann)
    settled(eve)
    stored = list(harness.durable)
    eve.leaves()
    harness.durable = stored + [record for record in harness.durable[len(stored) :] if record[1] is not None]
    assert types(harness.restarted()) == ["classic"]


# Formats


def test_what_cannot_be_read_is_none() -> None:
    assert decode_subscription(b"") is None
    assert decode_subscription(b"\x00\x01\x00\x00\x00\x09") is None
    assert decode_assignment(b"\xff\xff\x00\x00\x00\x00") is None
    assert decode_assignment(b"") == frozenset()


def test_assignments_come_back() -> None:
    some = {TopicPartition("a", 1), TopicPartition("a", 0), TopicPartition("b", 7)}
    assert decode_assignment(encode_assignment(some)) == some
