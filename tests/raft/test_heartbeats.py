"""One heartbeat for many groups. A lost, repeated or reordered frame must never count as a heartbeat, or as a lease."""

from collections.abc import Mapping
from uuid import UUID

import msgspec
import pytest

from penstock.errors import ProtocolViolation
from penstock.raft import (
    Heartbeat,
    HeartbeatFrame,
    HeartbeatReceiver,
    HeartbeatReply,
    HeartbeatSender,
    Raft,
    Role,
)
from penstock.raft.heartbeats import NO_REBORN, decode, encode
from penstock.raft.heartbeats import Pair as PairOfReplicas
from penstock.raft.leader import Leader
from penstock.types import NO_TERM, GroupId
from tests.raft.machine import SETTINGS, replica
from tests.raft.scripted_group import ScriptedGroup

A, B = (GroupId(UUID(int=number), 0) for number in (1, 2))


class Pair:
    """Node 1 leads two groups in which node 2 has a replica."""

    def __init__(self) -> None:
        self.scripted_groups = {group: ScriptedGroup(3) for group in (A, B)}
        for scripted in self.scripted_groups.values():
            scripted.play(">> elect 1\n>> heartbeat 1")
        self.now = max(scripted.now for scripted in self.scripted_groups.values())
        self.sender = HeartbeatSender(replica(2), session=7, lease_s=SETTINGS.lease_s)
        self.receiver = HeartbeatReceiver(replica(1))

    def leader(self, group: GroupId) -> Raft | None:
        return self.scripted_groups[group].machines[1].raft

    def follower(self, group: GroupId) -> Raft | None:
        return self.scripted_groups[group].machines[2].raft

    def frame(self, reborn: Mapping[GroupId, PairOfReplicas] = NO_REBORN) -> HeartbeatFrame:
        heartbeats = [
            (group, scripted.machines[1].raft.heartbeat()) for group, scripted in self.scripted_groups.items()
        ]
        frame = self.sender.frame(self.now, heartbeats, reborn)
        assert frame is not None
        return frame

    def hear(self, frame: HeartbeatFrame) -> HeartbeatReply | None:
        reply, effects = self.receiver.receive(self.now, frame, self.follower)
        for group, some in effects:
            self.scripted_groups[group].machines[2].do(self.now, some)
        return reply

    def exchange(self) -> HeartbeatFrame:
        frame = self.frame()
        reply = self.hear(frame)
        assert reply is not None
        self.sender.receive(self.now, reply, self.leader)
        return frame


def groups(frame: HeartbeatFrame) -> list[GroupId]:
    return [heartbeat.group for heartbeat in frame.changed]


def test_a_frame_names_only_changed_groups() -> None:
    pair = Pair()
    assert groups(pair.exchange()) == [A, B]
    assert groups(pair.exchange()) == []
    pair.scripted_groups[B].play(">> propose 1 1\n>> settle")
    assert groups(pair.exchange()) == [B]
    assert pair.scripted_groups[B].machines[2].raft.commit_index == 2


def test_a_group_that_a_frame_does_not_name_still_gets_its_heartbeat() -> None:
    pair = Pair()
    pair.exchange()
    pair.now += 0.9
    pair.exchange()
    for group in (A, B):
        assert pair.scripted_groups[group].machines[2].raft.heard_at == pair.now
        assert pair.scripted_groups[group].machines[1].raft.may_serve(pair.now + 0.4)


def test_a_lost_frame_leads_to_everything_being_named_again() -> None:
    """The lost one may have said that a group has another leader: until then no group counts a heartbeat as heard."""
    pair = Pair()
    pair.exchange()
    pair.now += 0.2
    pair.frame()
    pair.now += 0.2
    reply = pair.hear(late := pair.frame())
    assert reply == HeartbeatReply(7, late.sequence, True, [])
    assert pair.scripted_groups[A].machines[2].raft.heard_at == pair.now - 0.4
    pair.sender.receive(pair.now, reply, pair.leader)
    frame = pair.exchange()
    assert (frame.reset, groups(frame)) == (True, [A, B])


def test_a_repeated_or_late_frame_is_not_a_heartbeat() -> None:
    pair = Pair()
    first = pair.exchange()
    second = pair.exchange()
    pair.now += 0.5
    assert pair.hear(first) is None
    assert pair.hear(second) is None
    assert pair.scripted_groups[A].machines[2].raft.heard_at == pair.now - 0.5


def test_a_restarted_receiver_asks_for_all_groups() -> None:
    pair = Pair()
    pair.exchange()
    pair.receiver = HeartbeatReceiver(replica(1))
    assert pair.exchange().reset is False
    assert groups(pair.exchange()) == [A, B]


def test_a_reply_of_another_session_is_ignored() -> None:
    pair = Pair()
    reply = pair.hear(pair.frame())
    assert reply is not None
    pair.sender = HeartbeatSender(replica(2), session=8, lease_s=SETTINGS.lease_s)
    pair.frame()
    pair.now += 5
    pair.sender.receive(pair.now, reply, pair.leader)
    assert not pair.scripted_groups[A].machines[1].raft.may_serve(pair.now)


def test_a_reply_does_not_confirm_a_term_that_began_after_its_frame() -> None:
    """[5] Between frame and reply the leader lost its term and won another one: the reply is no lease for that."""
    pair = Pair()
    reply = pair.hear(pair.frame())
    scripted = pair.scripted_groups[A]
    scripted.play(">> transfer 1 3\n>> settle\n>> transfer 3 1\n>> settle")
    leader = scripted.machines[1].raft
    assert (leader.role, leader.term) == (Role.LEADER, 2)
    sent_at = pair.now
    pair.now += 0.5
    pair.frame()
    assert reply is not None
    pair.sender.receive(pair.now, reply, pair.leader)
    peers = {row.replica.node: row.heartbeat_sent_at for row in leader.progress()}
    assert peers[2] == float("-inf")
    assert {row.heartbeat_sent_at for row in pair.scripted_groups[B].machines[1].raft.progress()} >= {sent_at}


def test_a_group_in_a_later_term_refuses_the_heartbeat_and_deposes_the_leader() -> None:
    pair = Pair()
    pair.exchange()
    follower = pair.scripted_groups[A].machines[2]
    follower.raft.refused(pair.now, replica(3), 9)
    follower.hard = follower.raft.hard
    reply = pair.hear(pair.frame())
    assert reply is not None
    assert reply.refused == [(A, 9)]
    ((group, _effects),) = pair.sender.receive(pair.now, reply, pair.leader)
    assert group == A
    leader = pair.scripted_groups[A].machines[1].raft
    assert (leader.role, leader.term) == (Role.FOLLOWER, 9)


def test_a_reply_behind_a_lost_one_gives_no_lease_and_everything_is_named_again() -> None:
    pair = Pair()
    pair.exchange()
    leader = pair.leader(A)
    assert leader is not None
    assert isinstance(leader.part, Leader)
    before = leader.part.lease_at(replica(2))
    pair.now += 0.1
    pair.hear(pair.frame())  # its reply is lost: it may have named a group that did not take the heartbeat
    pair.now += 0.1
    pair.exchange()
    assert leader.part.lease_at(replica(2)) == before
    pair.now += 0.1
    assert groups(pair.exchange()) == [A, B]
    assert leader.part.lease_at(replica(2)) == pair.now


def test_a_group_that_the_receiver_does_not_have_yet_is_named_until_it_does() -> None:
    pair = Pair()
    frame = pair.frame()
    reply, _ = pair.receiver.receive(pair.now, frame, lambda group: None)
    assert reply is not None
    assert reply.refused == [(A, -1), (B, -1)]
    assert pair.sender.receive(pair.now, reply, pair.leader) == []
    assert groups(pair.exchange()) == [A, B]
    assert pair.scripted_groups[A].machines[1].raft.may_serve(pair.now)


def test_a_group_that_the_sender_no_longer_leads_is_dropped() -> None:
    pair = Pair()
    pair.exchange()
    del pair.scripted_groups[B]
    frame = pair.exchange()
    assert frame.dropped == [B]
    assert pair.exchange().dropped == []
    del pair.scripted_groups[A]
    assert pair.sender.frame(pair.now, []) is not None
    assert pair.sender.frame(pair.now, []) is None


def test_frames_travel_as_bytes() -> None:
    pair = Pair()
    frame = pair.frame()
    reply = HeartbeatReply(1, 2, True, [(A, 5), (B, -1)])
    assert decode(encode(frame)) == frame
    assert decode(encode(reply)) == reply
    assert len(encode(frame)) < 100


@pytest.mark.parametrize(
    "body", [b"", b"\x93", b"\x96\x00\x01", encode(HeartbeatReply(0, 0, False, []))[:-1], b"[1]"]
)
def test_garbage_is_the_peers_fault(body: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        decode(body)


def test_a_frame_of_too_many_bytes_is_not_read() -> None:
    with pytest.raises(ProtocolViolation, match="at most"):
        decode(bytes((8 << 20) + 1))


@pytest.mark.parametrize("lease_s", [0.0, -1.0, 60.1, float("inf"), float("nan")])
def test_a_lease_outside_its_range_is_refused(lease_s: float) -> None:
    """A follower that believed it would never elect another leader."""
    with pytest.raises(ProtocolViolation, match="does not parse"):
        decode(encode(HeartbeatFrame(7, 1, True, [], [], lease_s)))


def test_a_follower_learns_the_lease_from_the_frame() -> None:
    pair = Pair()
    pair.sender = HeartbeatSender(replica(2), session=7, lease_s=0.7)
    pair.exchange()
    follower = pair.follower(A)
    assert follower is not None
    assert follower.honours_lease(pair.now + 0.69)
    assert not follower.honours_lease(pair.now + 0.71)


def test_a_frame_of_an_earlier_version_is_a_lease_for_an_election_timeout() -> None:
    """During a rolling update: the older leader counts on that."""
    pair = Pair()
    pair.exchange()
    fields = msgspec.msgpack.decode(encode(pair.frame()))
    older = decode(msgspec.msgpack.encode(fields[:-1]))
    assert isinstance(older, HeartbeatFrame)
    pair.hear(older)
    follower = pair.follower(A)
    assert follower is not None
    assert follower.honours_lease(pair.now + SETTINGS.election_timeout_s - 0.01)


def test_a_follower_that_does_not_know_its_match_asks_with_every_heartbeat() -> None:
    """The first question may be lost, and the heartbeats that follow say nothing new."""
    pair = Pair()
    pair.exchange()
    scripted = pair.scripted_groups[A]
    scripted.play(">> crash 2\n>> start 2")
    pair.receiver = HeartbeatReceiver(replica(1))
    pair.exchange()
    pair.exchange()
    scripted.play(">> deliver")
    scripted.machines[2].crash()
    scripted.machines[2].start(pair.now)
    pair.receiver = HeartbeatReceiver(replica(1))
    pair.exchange()
    pair.exchange()
    scripted.wires.clear()
    pair.exchange()
    scripted.play(">> deliver")
    assert scripted.machines[2].raft.commit_index == scripted.machines[1].raft.commit_index


# --- replicas that were recreated alone


def test_a_recreated_replica_is_addressed_and_answers_under_its_new_incarnation() -> None:
    """Node 2 has in group A the incarnation of a recreated replica, and in B that of its folder."""
    pair = Pair()
    reborn = replica(2).in_life(1)
    scripted = pair.scripted_groups[A]
    scripted.wipe(2, reborn.incarnation)
    scripted.play(">> change 1 1 2 3\n>> settle")
    pair.receiver = HeartbeatReceiver(replica(1), replica(2))
    pair.now = max(one.now for one in pair.scripted_groups.values())
    frame = pair.frame(reborn={A: PairOfReplicas(0, reborn.incarnation)})
    reply = pair.hear(frame)
    assert reply is not None
    assert reply.refused == []
    pair.sender.receive(pair.now, reply, pair.leader)
    progress = {one.replica: one.heartbeat_sent_at for one in scripted.machines[1].raft.progress()}
    assert progress[reborn] == pair.now
    assert scripted.machines[2].raft.heard_at == pair.now


@pytest.mark.parametrize("life", [0, 2])
def test_a_heartbeat_for_another_incarnation_is_not_taken(life: int) -> None:
    pair = Pair()
    scripted = pair.scripted_groups[A]
    scripted.wipe(2, replica(2).in_life(1).incarnation)
    pair.receiver = HeartbeatReceiver(replica(1), replica(2))
    meant = replica(2).in_life(life).incarnation if life else 0
    reply = pair.hear(pair.frame(reborn={A: PairOfReplicas(0, meant)}))
    assert reply is not None
    assert reply.refused == [(A, NO_TERM)]


def test_a_recreated_leader_is_followed_under_its_new_incarnation() -> None:
    receiver = HeartbeatReceiver(replica(1), replica(2))
    scripted = ScriptedGroup(3)
    follower = scripted.machines[2]
    reborn = replica(1).in_life(3)
    sender = HeartbeatSender(replica(2), session=7, lease_s=SETTINGS.lease_s)
    lives = {A: PairOfReplicas(reborn.incarnation, 0)}
    frame = sender.frame(scripted.now, [(A, Heartbeat(4, 0, 0))], lives)
    assert frame is not None
    _, effects = receiver.receive(scripted.now, frame, lambda _: follower.raft)
    follower.do(scripted.now, effects[0][1])
    assert (follower.raft.leader, follower.raft.term) == (reborn, 4)
