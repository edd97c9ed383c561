"""After a restart the groups are as they were: everything that was told to anybody is in the log."""

import pytest

from penstock.errors import ErrorCode, UnknownFormat
from penstock.groups import GroupState
from tests.groups.scene import SESSION_MS, Scene, rejoin, stable


def test_a_stable_group_goes_on_as_if_nothing_had_happened() -> None:
    scene = Scene()
    alice, bob = (
        scene.client("alice", instance_id="pod-0"),
        scene.client("bob", protocols=("range", "sticky")),
    )
    stable(scene, alice, bob)
    alice.commits(offset=3)

    after = scene.restarted()
    assert after.state() == scene.state()
    for client in (alice, bob):
        client.scene = after
        after.clients.append(client)
        assert client.heartbeats() is ErrorCode.NONE
    assert bob.syncs().assignment == b"bob"
    assert bob.commits(offset=4).error is ErrorCode.NONE

    bob.joins()  # what he offers besides the chosen protocol was not stored, so this is news
    assert alice.heartbeats() is ErrorCode.REBALANCE_IN_PROGRESS
    alice.joins()
    rejoin(alice, bob)
    assert alice.generation == bob.generation == 3


def test_members_that_do_not_come_back_are_out_after_their_session() -> None:
    scene = Scene()
    stable(scene, scene.client("alice"))
    after = scene.restarted()
    after.passes(SESSION_MS)
    assert after.group().state is GroupState.EMPTY


def test_an_empty_group_remembers_since_when() -> None:
    scene = Scene()
    alice = scene.client("alice")
    stable(scene, alice)
    alice.commits()
    alice.leaves()
    scene.passes(6 * 86_400_000)
    after = scene.restarted()
    assert after.state() == scene.state()
    after.passes(86_400_000 + 600_000)
    assert after.state() == {}


def test_the_compacted_log_tells_the_same_story() -> None:
    scene = Scene()
    alice, bob = scene.client("alice"), scene.client("bob", group_id="other")
    stable(scene, alice)
    stable(scene, bob)
    for offset in range(5):
        alice.commits(offset=offset)
        bob.commits(offset=offset)
    bob.leaves()
    scene.deletes_groups("other")
    whole = scene.restarted().state()
    last_words = dict(scene.durable)
    scene.durable = [(key, value) for key, value in last_words.items() if value is not None]
    assert scene.restarted().state() == whole == scene.state()


def test_a_group_s_tombstone_leaves_offsets_to_their_own() -> None:
    scene = Scene()
    alice = scene.client("alice")
    stable(scene, alice)
    alice.commits()
    group_key = next(key for key, _ in scene.durable if key.startswith(b"\0\2"))
    scene.durable.append((group_key, None))
    after = scene.restarted()
    assert after.group().state is GroupState.EMPTY
    assert after.group().generation == 0
    assert after.offsets() == scene.offsets()


def test_a_record_of_another_version_is_not_skipped() -> None:
    scene = Scene()
    scene.durable.append((b"\0\5\0\1g", b"\0\0"))
    with pytest.raises(UnknownFormat):
        scene.restarted()
