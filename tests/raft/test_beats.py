"""One beat for many groups. What is lost, comes twice or out of order must never pass for a beat, or for a lease."""

from collections.abc import Mapping
from uuid import UUID

import pytest

from penstock.errors import ProtocolViolation
from penstock.raft import Beat, BeatFrame, BeatReceiver, BeatReply, BeatSender, Raft, Role
from penstock.raft.beats import NO_REBORN, decode, encode
from penstock.raft.beats import Pair as PairOfReplicas
from penstock.types import NO_TERM, GroupId
from tests.raft.machine import replica
from tests.raft.stage import Stage

A, B = (GroupId(UUID(int=number), 0) for number in (1, 2))


class Pair:
    """Node 1 leads two groups in which node 2 has a replica."""

    def __init__(self) -> None:
        self.stages = {group: Stage(3) for group in (A, B)}
        for stage in self.stages.values():
            stage.play(">> elect 1\n>> beat 1")
        self.now = max(stage.now for stage in self.stages.values())
        self.sender = BeatSender(replica(2), session=7)
        self.receiver = BeatReceiver(replica(1))

    def leader(self, group: GroupId) -> Raft | None:
        return self.stages[group].machines[1].raft

    def follower(self, group: GroupId) -> Raft | None:
        return self.stages[group].machines[2].raft

    def frame(self, reborn: Mapping[GroupId, PairOfReplicas] = NO_REBORN) -> BeatFrame:
        beats = [(group, stage.machines[1].raft.beat()) for group, stage in self.stages.items()]
        frame = self.sender.frame(self.now, beats, reborn)
        assert frame is not None
        return frame

    def hear(self, frame: BeatFrame) -> BeatReply | None:
        reply, effects = self.receiver.receive(self.now, frame, self.follower)
        for group, some in effects:
            self.stages[group].machines[2].do(self.now, some)
        return reply

    def exchange(self) -> BeatFrame:
        frame = self.frame()
        reply = self.hear(frame)
        assert reply is not None
        self.sender.receive(self.now, reply, self.leader)
        return frame


def groups(frame: BeatFrame) -> list[GroupId]:
    return [beat.group for beat in frame.changed]


def test_a_frame_names_only_what_has_changed() -> None:
    pair = Pair()
    assert groups(pair.exchange()) == [A, B]
    assert groups(pair.exchange()) == []
    pair.stages[B].play(">> propose 1 1\n>> settle")
    assert groups(pair.exchange()) == [B]
    assert pair.stages[B].machines[2].raft.commit_index == 2


def test_a_group_that_is_not_named_hears_its_beat_all_the_same() -> None:
    pair = Pair()
    pair.exchange()
    pair.now += 0.9
    pair.exchange()
    for group in (A, B):
        assert pair.stages[group].machines[2].raft.heard_at == pair.now
        assert pair.stages[group].machines[1].raft.may_serve(pair.now + 0.8)


def test_a_lost_frame_leads_to_everything_being_named_again() -> None:
    """The lost one may have said that a group has another leader: until then nobody counts anything as heard."""
    pair = Pair()
    pair.exchange()
    pair.now += 0.2
    pair.frame()
    pair.now += 0.2
    reply = pair.hear(late := pair.frame())
    assert reply == BeatReply(7, late.sequence, True, [])
    assert pair.stages[A].machines[2].raft.heard_at == pair.now - 0.4
    pair.sender.receive(pair.now, reply, pair.leader)
    frame = pair.exchange()
    assert (frame.reset, groups(frame)) == (True, [A, B])


def test_a_frame_that_comes_twice_or_late_is_no_beat() -> None:
    pair = Pair()
    first = pair.exchange()
    second = pair.exchange()
    pair.now += 0.5
    assert pair.hear(first) is None
    assert pair.hear(second) is None
    assert pair.stages[A].machines[2].raft.heard_at == pair.now - 0.5


def test_a_receiver_that_starts_anew_asks_for_everything() -> None:
    pair = Pair()
    pair.exchange()
    pair.receiver = BeatReceiver(replica(1))
    assert pair.exchange().reset is False
    assert groups(pair.exchange()) == [A, B]


def test_a_reply_of_another_session_counts_for_nothing() -> None:
    pair = Pair()
    reply = pair.hear(pair.frame())
    assert reply is not None
    pair.sender = BeatSender(replica(2), session=8)
    pair.frame()
    pair.now += 5
    pair.sender.receive(pair.now, reply, pair.leader)
    assert not pair.stages[A].machines[1].raft.may_serve(pair.now)


def test_a_reply_does_not_speak_for_what_was_said_after_its_frame() -> None:
    """[5] Between frame and reply the leader lost its term and won another one: the reply is no lease for that."""
    pair = Pair()
    reply = pair.hear(pair.frame())
    stage = pair.stages[A]
    stage.play(">> transfer 1 3\n>> settle\n>> transfer 3 1\n>> settle")
    leader = stage.machines[1].raft
    assert (leader.role, leader.term) == (Role.LEADER, 2)
    sent_at = pair.now
    pair.now += 0.5
    pair.frame()
    assert reply is not None
    pair.sender.receive(pair.now, reply, pair.leader)
    peers = {row.replica.node: row.beat_sent_at for row in leader.progress()}
    assert peers[2] == float("-inf")
    assert {row.beat_sent_at for row in pair.stages[B].machines[1].raft.progress()} >= {sent_at}


def test_a_group_that_is_past_the_term_refuses_and_ends_the_reign() -> None:
    pair = Pair()
    pair.exchange()
    follower = pair.stages[A].machines[2]
    follower.raft.refused(pair.now, replica(3), 9)
    follower.hard = follower.raft.hard
    reply = pair.hear(pair.frame())
    assert reply is not None
    assert reply.refused == [(A, 9)]
    ((group, _effects),) = pair.sender.receive(pair.now, reply, pair.leader)
    assert group == A
    assert (pair.stages[A].machines[1].raft.role, pair.stages[A].machines[1].raft.term) == (Role.FOLLOWER, 9)


def test_a_group_that_is_not_here_yet_is_named_until_it_is() -> None:
    pair = Pair()
    frame = pair.frame()
    reply, _ = pair.receiver.receive(pair.now, frame, lambda group: None)
    assert reply is not None
    assert reply.refused == [(A, -1), (B, -1)]
    assert pair.sender.receive(pair.now, reply, pair.leader) == []
    assert groups(pair.exchange()) == [A, B]
    assert pair.stages[A].machines[1].raft.may_serve(pair.now)


def test_a_group_that_is_led_no_more_is_dropped() -> None:
    pair = Pair()
    pair.exchange()
    del pair.stages[B]
    frame = pair.exchange()
    assert frame.dropped == [B]
    assert pair.exchange().dropped == []
    del pair.stages[A]
    assert pair.sender.frame(pair.now, []) is not None
    assert pair.sender.frame(pair.now, []) is None


def test_frames_travel_as_bytes() -> None:
    pair = Pair()
    frame = pair.frame()
    reply = BeatReply(1, 2, True, [(A, 5), (B, -1)])
    assert decode(encode(frame)) == frame
    assert decode(encode(reply)) == reply
    assert len(encode(frame)) < 100


@pytest.mark.parametrize(
    "body", [b"", b"\x93", b"\x96\x00\x01", encode(BeatReply(0, 0, False, []))[:-1], b"[1]"]
)
def test_garbage_is_the_peers_fault(body: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        decode(body)


def test_a_frame_of_too_many_bytes_is_not_read() -> None:
    with pytest.raises(ProtocolViolation, match="at most"):
        decode(bytes((8 << 20) + 1))


def test_who_has_forgotten_what_matches_asks_with_every_beat() -> None:
    """The first question may be lost, and the beats that follow say nothing new."""
    pair = Pair()
    pair.exchange()
    stage = pair.stages[A]
    stage.play(">> crash 2\n>> start 2")
    pair.receiver = BeatReceiver(replica(1))
    pair.exchange()
    pair.exchange()
    stage.play(">> deliver")
    stage.machines[2].crash()
    stage.machines[2].start(pair.now)
    pair.receiver = BeatReceiver(replica(1))
    pair.exchange()
    pair.exchange()
    stage.wires.clear()
    pair.exchange()
    stage.play(">> deliver")
    assert stage.machines[2].raft.commit_index == stage.machines[1].raft.commit_index


# --- replicas that were made anew alone


def test_a_replica_in_another_life_is_spoken_to_and_answers_as_what_it_is() -> None:
    """Node 2 is in group A what it was made anew as, and in B what its folder is."""
    pair = Pair()
    reborn = replica(2).in_life(1)
    stage = pair.stages[A]
    stage.wipe(2, reborn.incarnation)
    stage.play(">> change 1 1 2 3\n>> settle")
    pair.receiver = BeatReceiver(replica(1), replica(2))
    pair.now = max(one.now for one in pair.stages.values())
    frame = pair.frame(reborn={A: PairOfReplicas(0, reborn.incarnation)})
    reply = pair.hear(frame)
    assert reply is not None
    assert reply.refused == []
    pair.sender.receive(pair.now, reply, pair.leader)
    progress = {one.replica: one.beat_sent_at for one in stage.machines[1].raft.progress()}
    assert progress[reborn] == pair.now
    assert stage.machines[2].raft.heard_at == pair.now


@pytest.mark.parametrize("life", [0, 2])
def test_a_beat_for_another_life_is_not_taken(life: int) -> None:
    pair = Pair()
    stage = pair.stages[A]
    stage.wipe(2, replica(2).in_life(1).incarnation)
    pair.receiver = BeatReceiver(replica(1), replica(2))
    meant = replica(2).in_life(life).incarnation if life else 0
    reply = pair.hear(pair.frame(reborn={A: PairOfReplicas(0, meant)}))
    assert reply is not None
    assert reply.refused == [(A, NO_TERM)]


def test_a_leader_in_another_life_is_followed_as_what_it_is() -> None:
    receiver = BeatReceiver(replica(1), replica(2))
    stage = Stage(3)
    follower = stage.machines[2]
    reborn = replica(1).in_life(3)
    sender = BeatSender(replica(2), session=7)
    lives = {A: PairOfReplicas(reborn.incarnation, 0)}
    frame = sender.frame(stage.now, [(A, Beat(4, 0, 0))], lives)
    assert frame is not None
    _, effects = receiver.receive(stage.now, frame, lambda _: follower.raft)
    follower.do(stage.now, effects[0][1])
    assert (follower.raft.leader, follower.raft.term) == (reborn, 4)
