"""Share groups through whatever may happen to them: members, topics, disks and coordinators come and go."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ErrorCode
from penstock.groups import SharedTopic
from penstock.groups.share_storage import decode_share_group
from tests.groups.share_scene import QUEUE, ShareClient, ShareScene

NAMES = ("ann", "bob", "eve")
TOPICS = ("orders", "refunds", "returns")
Steps = list[tuple[str, str, tuple[str, ...], int]]

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "reports",
                "loses",
                "leaves",
                "subscribes",
                "puts",
                "drops",
                "passes",
                "fails",
                "disk",
                "deletes",
            ]
        ),
        st.sampled_from(NAMES),
        st.lists(st.sampled_from(TOPICS), min_size=1, max_size=3).map(tuple),
        st.integers(1, 5),
    ),
    max_size=60,
)


class Watched:
    """A scene whose invariants are checked after every step."""

    def __init__(self) -> None:
        self.scene = ShareScene()
        self.members = {name: self.scene.member(name) for name in NAMES}
        self.highest_told = 0

    def step(self, what: str, name: str, topics: tuple[str, ...], number: int) -> None:
        member, scene = self.members[name], self.scene
        match what:
            case "reports":
                self._told(member, is_heard=True)
            case "loses":
                self._told(member, is_heard=False)
            case "leaves" if member.epoch:
                member.leaves()
            case "subscribes":
                member.topics = topics
            case "puts":
                known = scene.cluster.topics.get(topics[0])
                scene.puts(topics[0], number + (known.partitions if known is not None else 0))
            case "drops" if topics[0] in scene.cluster.topics:
                scene.drops(topics[0])
            case "passes":
                scene.passes(number * 10_000)
            case "fails":
                self.fails_over()
            case "disk":
                scene.disk = "full" if number == 1 else "prompt"
            case "deletes" if scene.deletes() is ErrorCode.NONE:
                self.highest_told = 0

    def _told(self, member: ShareClient, *, is_heard: bool) -> None:
        if is_heard:
            result = member.reports()
        else:
            lost = member.sends(member.epoch, member.topics)
            assert lost is not None
            result = lost
        if result.error is ErrorCode.NONE:
            stored = [
                value for key, value in self.scene.durable if value is not None and QUEUE.encode() in key
            ]
            assert result.member_epoch <= decode_share_group(stored[-1]), "invariant 2"
            self.highest_told = max(self.highest_told, result.member_epoch)

    def fails_over(self) -> None:
        self.scene = self.scene.restarted()
        for member in self.members.values():
            member.scene = self.scene

    def check(self) -> None:
        described = self.scene.coordinator.describe_share_group(QUEUE)
        if described is None:
            return
        assert described.epoch >= self.highest_told, "invariant 1"
        for member in described.members:
            assert member.member_epoch <= described.epoch, "invariant 1"
            assert member.assignment == self.expected(member.topics)
        subscriptions = {member.topics for member in described.members}
        group = self.scene.coordinator._share_groups._groups[QUEUE]
        assert set(group.plans) == subscriptions, "invariant 3"
        readers = {topic for topics in subscriptions for topic in topics}
        assert set(self.scene.coordinator._share_groups._readers) == readers

    def expected(self, topics: tuple[str, ...]) -> tuple[SharedTopic, ...]:
        known = self.scene.cluster.topics
        return tuple(known[name] for name in sorted(set(topics)) if name in known)


@given(STEPS)
def test_whatever_happens_members_end_up_with_what_they_subscribed_to(steps: Steps) -> None:
    watched = Watched()
    for step in steps:
        watched.step(*step)
        watched.check()
    watched.scene.disk = "prompt"
    for member in watched.members.values():
        # At most: unknown or fenced, joined again.
        for _ in range(2):
            member.reports()
        expected = {topic.name: topic.partitions for topic in watched.expected(member.topics)}
        assert member.assignment == expected
    assert not watched.scene.open_tokens
