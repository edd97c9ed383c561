"""Which announcements of leaders a node keeps while its metadata changes."""

from uuid import UUID

from penstock.cluster import ClusterState
from penstock.cluster.records import TopicCreated, TopicDeleted
from penstock.node.membership.no_network import NoNetwork
from penstock.node.parts import TopicChanges
from penstock.node.replication.leader_announcer import LeaderAnnouncer
from penstock.node.replication.leaders import NO_LEADER, Leadership, LeaderTable, encode_rows
from penstock.types import GroupId, NodeId

ME, OTHER = NodeId(1), NodeId(2)
FIRST, SECOND = UUID(int=10), UUID(int=11)


class Scene:
    """Node 1, which hears of leaders from node 2."""

    def __init__(self) -> None:
        self.state = ClusterState(ME, {})
        self.leaders = LeaderTable()
        self._announcer = LeaderAnnouncer(
            node_id=ME, state=self.state, leaders=self.leaders, transport=NoNetwork()
        )

    def creates(self, name: str, topic_id: UUID) -> None:
        self.state.apply(TopicCreated(name=name, topic_id=topic_id, assignments=[[1, 2]], configs={}))
        self._announcer.metadata_changed(TopicChanges((name,)))

    def deletes(self, name: str, topic_id: UUID) -> None:
        self.state.apply(TopicDeleted(name=name, topic_id=topic_id))
        self._announcer.metadata_changed(TopicChanges((name,)))

    def hears_of(self, topic_id: UUID) -> None:
        rows = [(GroupId(topic_id, 0), Leadership(OTHER, 5, (OTHER,)))]
        self._announcer.heard(OTHER, memoryview(encode_rows(rows)))

    def leader_of(self, topic_id: UUID) -> int:
        return self.leaders.get(GroupId(topic_id, 0)).leader


def test_the_leaders_of_a_deleted_topic_are_forgotten() -> None:
    scene = Scene()
    scene.creates("orders", FIRST)
    scene.hears_of(FIRST)
    assert scene.leader_of(FIRST) == OTHER
    scene.deletes("orders", FIRST)
    assert scene.leader_of(FIRST) == NO_LEADER


def test_a_leader_that_announced_itself_before_its_topic_was_known_is_not_forgotten_with_another_topic() -> (
    None
):
    """It does not announce itself again: the topic would have no leader for this node, and markers would not reach
    it."""
    scene = Scene()
    scene.creates("orders", FIRST)
    scene.hears_of(SECOND)
    scene.deletes("orders", FIRST)
    scene.creates("stock", SECOND)
    assert scene.leader_of(SECOND) == OTHER


def test_the_leaders_of_a_topic_that_was_deleted_and_created_again_at_once_are_forgotten() -> None:
    scene = Scene()
    scene.creates("orders", FIRST)
    scene.hears_of(FIRST)
    scene.state.apply(TopicDeleted(name="orders", topic_id=FIRST))
    scene.creates("orders", SECOND)
    assert scene.leader_of(FIRST) == NO_LEADER
