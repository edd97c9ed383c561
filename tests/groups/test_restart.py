"""After a restart the groups are unchanged: all state that clients have seen is in the log."""

import pytest

from penstock.errors import ErrorCode, UnknownFormat
from penstock.groups import GroupState
from tests.groups.group_harness import SESSION_MS, GroupHarness, rejoin, stable


def test_a_stable_group_continues_after_a_restart() -> None:
    harness = GroupHarness()
    alice, bob = (
        harness.client("alice", instance_id="pod-0"),
        harness.client("bob", protocols=("range", "sticky")),
    )
    stable(harness, alice, bob)
    alice.commits(offset=3)

    after = harness.restarted()
    assert after.state() == harness.state()
    for client in (alice, bob):
        client.harness = after
        after.clients.append(client)
        assert client.heartbeats() is ErrorCode.NONE
    assert bob.syncs().assignment == b"bob"
    assert bob.commits(offset=4).error is ErrorCode.NONE

    bob.joins()  # his other protocols were not stored, so this is a change
    assert alice.heartbeats() is ErrorCode.REBALANCE_IN_PROGRESS
    alice.joins()
    rejoin(alice, bob)
    assert alice.generation == bob.generation == 3


def test_members_that_do_not_return_are_removed_after_their_session() -> None:
    harness = GroupHarness()
    stable(harness, harness.client("alice"))
    after = harness.restarted()
    after.passes(SESSION_MS)
    assert after.group().state is GroupState.EMPTY


def test_an_empty_group_keeps_the_time_since_when_it_is_empty() -> None:
    harness = GroupHarness()
    alice = harness.client("alice")
    stable(harness, alice)
    alice.commits()
    alice.leaves()
    harness.passes(6 * 86_400_000)
    after = harness.restarted()
    assert after.state() == harness.state()
    after.passes(86_400_000 + 600_000)
    assert after.state() == {}


def test_the_compacted_log_gives_the_same_state() -> None:
    harness = GroupHarness()
    alice, bob = harness.client("alice"), harness.client("bob", group_id="other")
    stable(harness, alice)
    stable(harness, bob)
    for offset in range(5):
        alice.commits(offset=offset)
        bob.commits(offset=offset)
    bob.leaves()
    harness.deletes_groups("other")
    whole = harness.restarted().state()
    last_words = dict(harness.durable)
    harness.durable = [(key, value) for key, value in last_words.items() if value is not None]
    assert harness.restarted().state() == whole == harness.state()


def test_a_groups_tombstone_does_not_delete_its_offsets() -> None:
    harness = GroupHarness()
    alice = harness.client("alice")
    stable(harness, alice)
    alice.commits()
    group_key = next(key for key, _ in harness.durable if key.startswith(b"\0\2"))
    harness.durable.append((group_key, None))
    after = harness.restarted()
    assert after.group().state is GroupState.EMPTY
    assert after.group().generation == 0
    assert after.offsets() == harness.offsets()


def test_a_record_of_another_version_is_not_skipped() -> None:
    harness = GroupHarness()
    harness.durable.append((b"\0\5\0\1g", b"\0\0"))
    with pytest.raises(UnknownFormat):
        harness.restarted()
