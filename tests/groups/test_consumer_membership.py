"""Members of consumer groups (KIP-848): how they join, share, move, and leave."""

from penstock.config import GroupSettings, Limits
from penstock.errors import ErrorCode
from penstock.groups import ConsumerHeartbeatResult
from penstock.groups.consumer_values import NOTHING
from tests.groups.consumer_group_harness import (
    REBALANCE_MS,
    SESSION_MS,
    ConsumerClient,
    ConsumerHarness,
    settled,
)
from tests.groups.group_harness import GROUP


def error(result: ConsumerHeartbeatResult | None) -> ErrorCode:
    assert result is not None
    return result.error


def joined(harness: ConsumerHarness, *names: str) -> list[ConsumerClient]:
    members = [harness.member(name) for name in names]
    settled(*members)
    return members


# Sharing


def test_the_first_member_reads_everything_with_its_first_answer() -> None:
    harness = ConsumerHarness()
    ann = harness.member("ann")
    result = ann.reports()
    assert (result.error, result.member_epoch) == (ErrorCode.NONE, 1)
    assert result.assignment == harness.of("orders", 0, 1, 2, 3)
    assert result.heartbeat_interval_ms == harness.settings.consumer_heartbeat_interval_ms


def test_a_new_member_waits_until_the_old_one_has_given_its_partitions_up() -> None:
    harness = ConsumerHarness()
    ann, bob = harness.member("ann"), harness.member("bob")
    ann.settles()
    assert bob.reports().assignment == NOTHING
    ann.busy = True
    assert ann.reports().assignment == harness.of("orders", 0, 1)
    assert bob.reports().assignment is None, "ann has not confirmed"
    ann.busy = False
    ann.reports()
    ann.reports()
    assert bob.reports().assignment == harness.of("orders", 2, 3)
    assert harness.epochs() == {"ann": 2, "bob": 2}


def test_a_heartbeat_without_news_is_answered_without_an_assignment_and_writes_nothing() -> None:
    harness = ConsumerHarness()
    (ann,) = joined(harness, "ann")
    written = len(harness.durable)
    result = ann.reports()
    assert (result.error, result.assignment, result.member_epoch) == (ErrorCode.NONE, None, 1)
    assert len(harness.durable) == written


def test_a_complete_request_is_answered_with_the_assignment() -> None:
    harness = ConsumerHarness()
    (ann,) = joined(harness, "ann")
    result = ann.sends(ann.epoch, **ann.complete())
    assert result is not None
    assert result.assignment == ann.owned


def test_partitions_of_a_member_that_leaves_go_to_the_others() -> None:
    harness = ConsumerHarness()
    ann, bob = joined(harness, "ann", "bob")
    assert bob.leaves().member_epoch == -1
    ann.settles()
    assert len(ann.owned) == 4


def test_a_member_that_is_silent_is_removed_after_its_session() -> None:
    harness = ConsumerHarness()
    ann, bob = joined(harness, "ann", "bob")
    harness.passes(SESSION_MS - 1)
    ann.reports()
    harness.passes(1)
    assert harness.epochs().keys() == {"ann"}
    ann.settles()
    assert len(ann.owned) == 4
    assert bob.reports().error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_has_the_session_timeout_of_its_config() -> None:
    harness = ConsumerHarness()
    harness.cluster.overridden[GROUP] = {"consumer.session.timeout.ms": "2000"}
    joined(harness, "ann")
    harness.passes(2_000)
    assert harness.epochs() == {}


def test_a_member_that_does_not_give_partitions_up_is_removed_after_its_rebalance_timeout() -> None:
    harness = ConsumerHarness()
    ann, bob = harness.member("ann"), harness.member("bob")
    ann.settles()
    bob.reports()
    ann.busy = True
    ann.reports()
    for _ in range(4):
        harness.passes(REBALANCE_MS // 4)
        ann.reports()
        bob.reports()
    assert harness.epochs().keys() == {"bob"}
    bob.settles()
    assert len(bob.owned) == 4


def test_new_partitions_are_given_out() -> None:
    harness = ConsumerHarness()
    (ann,) = joined(harness, "ann")
    harness.puts("orders", 6)
    ann.settles()
    assert ann.owned == harness.of("orders", *range(6))


def test_a_topic_that_is_deleted_is_taken_away() -> None:
    harness = ConsumerHarness()
    (ann,) = joined(harness, "ann")
    harness.drops("orders")
    ann.settles()
    assert ann.owned == NOTHING


def test_a_member_may_subscribe_to_other_topics() -> None:
    harness = ConsumerHarness()
    harness.puts("refunds", 2)
    (ann,) = joined(harness, "ann")
    ann.topics = ("refunds",)
    ann.settles()
    assert ann.owned == harness.of("refunds", 0, 1)


def test_the_assignor_that_most_members_ask_for_is_used() -> None:
    harness = ConsumerHarness()
    harness.puts("refunds", 4)
    members = [harness.member(name, "orders", "refunds", assignor="range") for name in ("ann", "bob")]
    settled(*members)
    assert harness.consumer_group().assignor == "range"
    assert members[0].owned == harness.of("orders", 0, 1) | harness.of("refunds", 0, 1)


# Computations


def test_members_that_come_within_the_interval_share_a_computation() -> None:
    harness = ConsumerHarness(GroupSettings())
    members = [harness.member(f"m{number}") for number in range(4)]
    for member in members:
        member.reports()
    assert harness.consumer_group().assignment_epoch == 1
    assert harness.consumer_group().state.value == "Assigning"
    harness.passes(1_000)
    assert harness.consumer_group().assignment_epoch == harness.consumer_group().epoch == 4
    settled(*members)
    assert [len(member.owned) for member in members] == [1, 1, 1, 1]
    assert harness.consumer_group().state.value == "Stable"


def test_a_large_computation_is_left_to_the_host() -> None:
    harness = ConsumerHarness()
    harness.puts("orders", 2_000)
    (ann,) = joined(harness, "ann")
    bob = harness.member("bob")
    bob.reports()
    assert len(harness.jobs) == 1
    settled(ann, bob)
    assert (len(ann.owned), len(bob.owned)) == (2_000, 0)
    harness.computes()
    settled(ann, bob)
    assert (len(ann.owned), len(bob.owned)) == (1_000, 1_000)


def test_a_computation_that_others_have_overtaken_counts_for_the_members_that_it_knew() -> None:
    harness = ConsumerHarness()
    harness.puts("orders", 2_000)
    ann, bob, eve = joined(harness, "ann")[0], harness.member("bob"), harness.member("eve")
    bob.reports()
    eve.reports()
    ann.leaves()
    harness.computes()
    assert len(harness.jobs) == 1, "the next one"
    harness.computes()
    settled(bob, eve)
    assert (len(bob.owned), len(eve.owned)) == (1_000, 1_000)


# Fencing


def test_an_epoch_that_was_never_told_is_fenced() -> None:
    harness = ConsumerHarness()
    (ann,) = joined(harness, "ann")
    assert error(ann.sends(ann.epoch + 1)) is ErrorCode.FENCED_MEMBER_EPOCH
    assert ann.reports().error is ErrorCode.NONE


def test_a_member_that_missed_an_answer_may_report_its_epoch_before() -> None:
    harness = ConsumerHarness()
    ann, bob = harness.member("ann"), harness.member("bob")
    ann.settles()
    bob.reports()
    ann.reports()
    old = ann.epoch
    lost = ann.sends(old, owned=ann.owned)
    assert lost is not None
    assert lost.member_epoch == old + 1
    again = ann.sends(old, **ann.complete())
    assert error(again) is ErrorCode.NONE
    assert again is not None
    assert again.assignment == ann.owned
    assert error(ann.sends(old)) is ErrorCode.FENCED_MEMBER_EPOCH, "it must show what it reads"


def test_a_member_that_joins_again_has_given_everything_up() -> None:
    harness = ConsumerHarness()
    ann, bob = joined(harness, "ann", "bob")
    ann.dies()
    assert len(ann.settles().owned) == 2
    assert len(bob.owned) == 2
    assert len(harness.epochs()) == 2


def test_an_unknown_member_must_join() -> None:
    harness = ConsumerHarness()
    assert error(harness.member("ann").sends(3)) is ErrorCode.UNKNOWN_MEMBER_ID
    joined(harness, "bob")
    assert error(harness.member("ann").sends(3)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert error(harness.member("ann").sends(-1)) is ErrorCode.UNKNOWN_MEMBER_ID


# Static members


def test_a_static_member_that_pauses_finds_its_partitions_again() -> None:
    harness = ConsumerHarness()
    ann, bob = harness.member("ann", instance="one"), harness.member("bob")
    settled(ann, bob)
    mine, epoch = ann.owned, harness.consumer_group().epoch
    assert ann.leaves(-2).member_epoch == -2
    bob.settles()
    assert len(bob.owned) == 2, "they wait for it"
    again = harness.member("ann-again", instance="one")
    assert again.reports().assignment == mine
    assert harness.consumer_group().epoch == epoch
    assert harness.restarted().epochs().keys() == {"ann-again", "bob"}


def test_partitions_of_a_static_member_that_does_not_come_back_go_to_the_others() -> None:
    harness = ConsumerHarness()
    ann, bob = harness.member("ann", instance="one"), harness.member("bob")
    settled(ann, bob)
    ann.leaves(-2)
    harness.passes(SESSION_MS // 2)
    bob.reports()
    harness.passes(SESSION_MS // 2)
    bob.settles()
    assert len(bob.owned) == 4


def test_an_instance_that_is_in_use_is_not_released() -> None:
    harness = ConsumerHarness()
    harness.member("ann", instance="one").settles()
    assert harness.member("bob", instance="one").reports().error is ErrorCode.UNRELEASED_INSTANCE_ID


def test_the_old_id_of_an_instance_is_fenced() -> None:
    harness = ConsumerHarness()
    ann = harness.member("ann", instance="one").settles()
    epoch = ann.epoch
    ann.leaves(-2)
    harness.member("ann-again", instance="one").settles()
    assert error(ann.sends(epoch)) is ErrorCode.FENCED_INSTANCE_ID


def test_a_dynamic_member_cannot_pause() -> None:
    harness = ConsumerHarness()
    (ann,) = joined(harness, "ann")
    assert error(ann.sends(-2, instance_id="one")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert error(ann.sends(ann.epoch, instance_id="one")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert ann.reports().error is ErrorCode.NONE, "it has not paused"


def test_a_member_may_join_again_as_another_instance() -> None:
    harness = ConsumerHarness()
    (ann,) = joined(harness, "ann")
    for instance in ("one", "two"):
        ann.instance, ann.epoch, ann.owned = instance, 0, NOTHING
        assert error(ann.sends(0, **ann.complete())) is ErrorCode.NONE
        assert harness.member("bob", instance=instance).reports().error is ErrorCode.UNRELEASED_INSTANCE_ID
    assert harness.member("bob", instance="one").reports().error is ErrorCode.NONE
    names = {each.member_id: each.instance_id for each in harness.restarted().consumer_group().members}
    assert names == {"ann": "two", "bob": "one"}


def test_a_paused_member_cannot_come_back_under_the_id_of_another_one() -> None:
    harness = ConsumerHarness()
    ann, bob = harness.member("ann", instance="one"), harness.member("bob")
    settled(ann, bob)
    ann.leaves(-2)
    assert (
        error(bob.sends(0, **bob.complete() | {"owned": NOTHING, "instance_id": "one"}))
        is ErrorCode.INVALID_REQUEST
    )
    again = harness.member("ann-again", instance="one")
    settled(again, bob)
    assert again.owned | bob.owned == harness.of("orders", 0, 1, 2, 3)


# Patterns


def test_a_pattern_finds_topics_that_are_created_later() -> None:
    harness = ConsumerHarness()
    ann = harness.member("ann", pattern="ref.*")
    ann.topics = ()
    ann.settles()
    assert ann.owned == NOTHING
    harness.puts("refunds", 2)
    ann.settles()
    assert ann.owned == harness.of("refunds", 0, 1)
    harness.drops("refunds")
    ann.settles()
    assert ann.owned == NOTHING


def test_a_pattern_finds_only_topics_that_its_member_may_describe() -> None:
    harness = ConsumerHarness()
    harness.puts("secret-orders", 1)
    ann, boss = (
        harness.member(name, pattern="sec.*", client_id=name, group_id=name) for name in ("ann", "admin")
    )
    settled(ann, boss)
    assert harness.of("secret-orders", 0) & ann.owned == NOTHING
    assert harness.of("secret-orders", 0) <= boss.owned


def test_a_pattern_is_matched_again_when_its_member_reports_to_the_next_coordinator() -> None:
    harness = ConsumerHarness()
    ann = harness.member("ann", pattern="sec.*", client_id="admin").settles()
    restarted = ann.harness = harness.restarted()
    restarted.puts("secret-orders", 1)
    ann.settles()
    assert restarted.of("secret-orders", 0) <= ann.owned


def test_a_pattern_that_is_none_is_refused() -> None:
    harness = ConsumerHarness()
    refused = harness.member("ann", pattern="((").reports()
    assert refused.error is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert harness.inner() is None


def test_patterns_are_bounded_in_length_and_number() -> None:
    harness = ConsumerHarness(limits=Limits(max_pattern_bytes=10, max_group_patterns=2))
    assert harness.member("m", pattern="a" * 9 + ".*").reports().error is ErrorCode.INVALID_REGULAR_EXPRESSION
    settled(harness.member("ann", pattern="a.*"), harness.member("bob", pattern="b.*"))
    assert harness.member("eve", pattern="c.*").reports().error is ErrorCode.INVALID_REQUEST
    assert harness.member("joe", pattern="a.*").reports().error is ErrorCode.NONE


def test_the_patterns_of_all_groups_are_bounded_together_and_leave_room_when_they_go() -> None:
    harness = ConsumerHarness(limits=Limits(max_pattern_instructions=7))
    ann, bob = harness.member("ann", pattern="a.*"), harness.member("bob", pattern="b.*", group_id="others")
    settled(ann)
    settled(bob)
    eve = harness.member("eve", pattern="c.*", group_id="third")
    refused = eve.reports()
    assert refused.error is ErrorCode.INVALID_REQUEST
    assert "limits.max_pattern_instructions (7)" in (refused.message or "")
    joe = harness.member("joe", pattern="a.*")
    assert joe.reports().error is ErrorCode.NONE  # the pattern is there already
    joe.leaves()
    assert eve.reports().error is ErrorCode.INVALID_REQUEST
    ann.leaves()
    assert eve.reports().error is ErrorCode.NONE


# Refusals


def test_a_full_group_refuses_members() -> None:
    harness = ConsumerHarness(limits=Limits(max_group_members=1))
    (ann,) = joined(harness, "ann")
    assert harness.member("bob").reports().error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert ann.reports().error is ErrorCode.NONE


def test_subscriptions_are_bounded() -> None:
    harness = ConsumerHarness(limits=Limits(max_subscribed_topics=2, max_group_metadata_bytes=200))
    assert harness.member("ann", "a", "b", "c").reports().error is ErrorCode.INVALID_REQUEST
    settled(harness.member("ann", "a", "b"))
    assert harness.member("bob", "a", "b").reports().error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert harness.epochs().keys() == {"ann"}


def test_a_group_beyond_the_limit_is_refused() -> None:
    harness = ConsumerHarness(limits=Limits(max_groups=1))
    joined(harness, "ann")
    assert harness.member("bob", group_id="other").reports().error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_requests_that_contradict_themselves_are_refused() -> None:
    harness = ConsumerHarness(limits=Limits(max_group_id_bytes=50))
    ann = harness.member("ann")
    complete = ann.complete()
    wrong: list[tuple[int, dict[str, object]]] = [
        (0, {**complete, "rebalance_timeout_ms": -1}),
        (0, {**complete, "owned": None}),
        (0, {**complete, "owned": harness.of("orders", 0)}),
        (0, {**complete, "topics": None}),
        (0, {**complete, "topics": ("",)}),
        (0, {**complete, "group_id": ""}),
        (0, {**complete, "member_id": ""}),
        (0, {**complete, "member_id": "m" * 51}),
        (0, {**complete, "instance_id": ""}),
        (0, {**complete, "rack_id": ""}),
        (-2, {}),
        (-3, {}),
    ]
    for epoch, fields in wrong:
        assert error(ann.sends(epoch, **fields)) is ErrorCode.INVALID_REQUEST, fields
    assert error(ann.sends(0, **complete | {"assignor": "mine"})) is ErrorCode.UNSUPPORTED_ASSIGNOR
    assert harness.inner() is None


# Names


def test_a_name_of_a_share_group_is_not_found() -> None:
    harness = ConsumerHarness()
    token = harness.new_token()
    harness.happens(harness.coordinator.begin_share_group(harness.now_ms, token, GROUP))
    assert harness.member("ann").reports().error is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_is_listed_by_its_type_and_state() -> None:
    harness = ConsumerHarness()
    (ann,) = joined(harness, "ann")
    listed = list(harness.coordinator.list_groups(states=["stable"], group_types=["Consumer"]))
    assert [(row.group_id, row.state.value, row.group_type) for row in listed] == [
        (GROUP, "Stable", "consumer")
    ]
    assert not list(harness.coordinator.list_groups(group_types=["classic"]))
    ann.leaves()
    assert [row.state.value for row in harness.coordinator.list_groups()] == ["Empty"]


def test_only_an_empty_group_can_be_deleted_and_nothing_is_left_of_it() -> None:
    harness = ConsumerHarness()
    (ann,) = joined(harness, "ann")
    result = harness.deletes_groups(GROUP)
    assert result is not None
    assert result.errors == {GROUP: ErrorCode.NON_EMPTY_GROUP}  # type: ignore[union-attr]
    ann.commits()
    ann.leaves()
    result = harness.deletes_groups(GROUP)
    assert result is not None
    assert result.errors == {GROUP: ErrorCode.NONE}  # type: ignore[union-attr]
    left = {key: value for key, value in dict(harness.durable).items() if value is not None}
    assert left == {}
    assert not list(harness.restarted().coordinator.list_groups())


def test_an_empty_group_is_of_the_type_of_its_next_member() -> None:
    harness = ConsumerHarness()
    old = harness.client("old")
    old.joins()
    old.syncs({})
    old.commits()
    old.leaves()
    ann = harness.member("ann").settles()
    assert len(ann.owned) == 4
    assert harness.offsets()
    assert ann.epoch > old.generation, "a commit of the old generation must not look new"
    restarted = ann.harness = harness.restarted()
    assert restarted.epochs().keys() == {"ann"}
    ann.leaves()
    new = restarted.client("new")
    new.joins()
    assert new.error is ErrorCode.NONE
    assert restarted.offsets()
    assert [row.group_type for row in restarted.coordinator.list_groups()] == ["classic"]


# The disk


def test_no_answer_is_sent_before_its_state_is_durable() -> None:
    harness = ConsumerHarness()
    harness.disk = "slow"
    ann = harness.member("ann")
    assert ann.sends(0, **ann.complete()) is None
    harness.disk = "prompt"
    harness.flush()
    assert harness.restarted().epochs() == {"ann": 1}


def test_changes_that_come_during_a_write_share_the_next_one() -> None:
    harness = ConsumerHarness()
    harness.disk = "slow"
    members = [harness.member(f"m{number}") for number in range(20)]
    for member in members:
        member.sends(0, **member.complete())
    writes = 0
    while harness.in_flight:
        harness.flush(1)
        writes += 1
    assert writes == 2
    assert not harness.open_tokens


def test_a_member_whose_state_cannot_be_stored_is_told_so_and_gets_it_later() -> None:
    harness = ConsumerHarness()
    harness.disk = "full"
    ann = harness.member("ann")
    assert ann.reports().error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    harness.disk = "prompt"
    assert len(ann.settles().owned) == 4
    assert harness.restarted().epochs() == {"ann": ann.epoch}


def test_members_go_on_under_the_next_coordinator() -> None:
    harness = ConsumerHarness()
    ann, bob = joined(harness, "ann", "bob")
    before = harness.consumer_group()
    restarted = harness.restarted()
    assert restarted.consumer_group() == before
    ann.harness = bob.harness = restarted
    assert ann.reports().error is bob.reports().error is ErrorCode.NONE
    assert ann.epoch == bob.epoch == before.epoch


def test_topics_that_changed_during_a_failover_are_noticed() -> None:
    harness = ConsumerHarness()
    (ann,) = joined(harness, "ann")
    harness.cluster.puts("orders", 6)
    ann.harness = harness.restarted()
    ann.settles()
    assert len(ann.owned) == 6


def test_a_revocation_that_a_failover_interrupts_is_still_due() -> None:
    harness = ConsumerHarness()
    ann, bob = harness.member("ann"), harness.member("bob")
    ann.settles()
    bob.reports()
    ann.busy = True
    ann.reports()
    ann.harness = bob.harness = restarted = harness.restarted()
    assert not bob.reports().assignment
    for _ in range(4):
        restarted.passes(REBALANCE_MS // 4)
        ann.reports()
        bob.reports()
    assert restarted.epochs().keys() == {"bob"}


def test_a_coordinator_whose_clock_is_behind_does_not_wait_for_the_time_of_the_last_computation() -> None:
    harness = ConsumerHarness(GroupSettings())
    (ann,) = joined(harness, "ann")
    harness.now_ms -= 600_000
    restarted = ann.harness = harness.restarted()
    bob = restarted.member("bob")
    for _ in range(3):
        settled(ann, bob)
        restarted.passes(500)
    settled(ann, bob)
    assert len(ann.owned) == len(bob.owned) == 2
