"""Share groups under random changes of members, topics, disks and coordinators."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ErrorCode
from penstock.groups import SharedTopic
from penstock.groups.share_storage import decode_share_group
from tests.groups.share_group_harness import QUEUE, ShareClient, ShareGroupHarness

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
    """A harness whose invariants are checked after every step."""

    def __init__(self) -> None:
        self.harness = ShareGroupHarness()
        self.members = {name: self.harness.member(name) for name in NAMES}
        self.highest_told = 0

    def step(self, what: str, name: str, topics: tuple[str, ...], number: int) -> None:
        member, harness = self.members[name], self.harness
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
                known = harness.cluster.topics.get(topics[0])
                harness.puts(topics[0], number + (known.partitions if known is not None else 0))
            case "drops" if topics[0] in harness.cluster.topics:
                harness.drops(topics[0])
            case "passes":
                harness.passes(number * 10_000)
            case "fails":
                self.fails_over()
            case "disk":
                harness.disk = "full" if number == 1 else "prompt"
            case "deletes" if harness.deletes() is ErrorCode.NONE:
                self.highest_told = 0

    def _told(self, member: ShareClient, *, is_heard: bool) -> None:
        if is_heard:
            result = member.reports()
        else:
            lost = member.sends(member.epoch, member.topics)
            member._told = None  # it cannot know what the coordinator has heard
            assert lost is not None
            result = lost
        if result.error is ErrorCode.NONE:
            stored = [
                value for key, value in self.harness.durable if value is not None and QUEUE.encode() in key
            ]
            assert result.member_epoch <= decode_share_group(stored[-1]), "invariant 2"
            self.highest_told = max(self.highest_told, result.member_epoch)

    def fails_over(self) -> None:
        self.harness = self.harness.restarted()
        for member in self.members.values():
            member.harness = self.harness

    def check(self) -> None:
        described = self.harness.coordinator.describe_share_group(QUEUE)
        if described is None:
            return
        assert described.epoch >= self.highest_told, "invariant 1"
        for member in described.members:
            assert member.member_epoch <= described.epoch, "invariant 1"
            assert member.assignment == self.expected(member.topics)
        subscriptions = {member.topics for member in described.members}
        group = self.harness.coordinator._share_groups._groups[QUEUE]
        assert set(group.plans) == subscriptions, "invariant 3"
        readers = {topic for topics in subscriptions for topic in topics}
        assert set(self.harness.coordinator._share_groups._readers) == readers

    def expected(self, topics: tuple[str, ...]) -> tuple[SharedTopic, ...]:
        known = self.harness.cluster.topics
        return tuple(known[name] for name in sorted(set(topics)) if name in known)


@given(STEPS)
def test_members_end_up_with_their_subscribed_topics_after_any_steps(steps: Steps) -> None:
    watched = Watched()
    for step in steps:
        watched.step(*step)
        watched.check()
    watched.harness.disk = "prompt"
    for member in watched.members.values():
        # At most: unknown or fenced, joined again.
        for _ in range(2):
            member.reports()
        expected = {topic.name: topic.partitions for topic in watched.expected(member.topics)}
        assert member.assignment == expected
    assert not watched.harness.open_tokens
