"""A lane's messages go to the lane's owner, and to no other member while one holds them. [10]"""

from array import array

import pytest

from penstock.errors import ConfigError, ErrorCode
from penstock.queue.lanes import STALE_MIN, LaneTable
from penstock.queue.settings import QueueSettings
from penstock.queue.states import CHUNK_SIZE
from penstock.queue.values import AckResult, Acquired, Withdrawn
from tests.queue.partition_harness import ACCEPT, NOT_YOURS, REJECT, RELEASE, TAKEN, PartitionHarness

FENCED = AckResult(ErrorCode.FENCED_MEMBER_EPOCH, False)
A, B = "worker a", "worker b"


class LaneHarness(PartitionHarness):
    """Three lanes: 0 and 1 belong to the owner A, with the member ann; 2 belongs to B, with the member ben."""

    def __init__(self, *lanes: int, start: int = 0, **settings: object) -> None:
        super().__init__(start=start, lanes=3, **settings)
        self.queue.attach("ann", A)
        self.queue.attach("ben", B)
        self.assigns(A, A, B)
        if lanes:
            self.reads_lanes(*lanes)

    def reads_lanes(self, *lanes: int, **scan: object) -> None:
        self.reads(len(lanes), lanes=array("H", lanes), **scan)

    def assigns(self, *owners: str | None, **others: object) -> Withdrawn:
        """The next table; lanes that it moves get its epoch."""
        before = getattr(self, "lanes", LaneTable())
        epoch = before.epoch + 1
        epochs = [
            before.epoch_of(lane) if owner == before.owner(lane) else epoch
            for lane, owner in enumerate(owners)
        ]
        self.lanes = LaneTable(epoch=epoch, owners=owners, epochs=epochs, **others)  # type: ignore[arg-type]
        return self.queue.assign(self.now_ms, self.lanes)

    def suspects(self) -> list[tuple[int, int]]:
        assert self.queue.lanes is not None
        return self.queue.lanes.suspects_among([(0, self.queue.next_offset)])

    def gets_ranges(self, member: str, owner: str) -> list[Acquired]:
        """The owner has all lanes, and its member gets all that there is."""
        self.queue.attach(member, owner)
        self.assigns(owner, owner, owner, present={owner})
        return self.queue.acquire(self.now_ms, member, 99)

    def crashes_owner(self, *, announced: list[int], breaks_first: bool = False) -> None:
        """A new owner of all lanes gets all messages, announces some and crashes. Its connection breaks before its
        clique notices, or after that."""
        self.incarnations = getattr(self, "incarnations", 0) + 1
        owner, member = f"worker {self.incarnations}", f"member {self.incarnations}"
        self.gets_ranges(member, owner)
        for offset in announced:
            assert self.queue.announce(self.now_ms, member, offset, offset)
        if breaks_first:
            self.queue.release_member(self.now_ms, member)
        self.assigns(None, None, None)
        self.queue.release_member(self.now_ms, member)


def test_each_owner_gets_the_messages_of_its_lanes_lowest_first() -> None:
    harness = LaneHarness(2, 0, 1, 0, 2)
    assert harness.gets("ben", 1) == [0]
    assert harness.gets("ann", 9) == [1, 2, 3]
    assert harness.gets("ben", 9) == [4]
    assert harness.gets("ann", 9) == []


def test_one_delivery_takes_no_more_than_asked_for_and_none_above_a_border() -> None:
    harness = LaneHarness(0, 0, 2, 1, 0)
    assert harness.gets("ann", 2) == [0, 1]
    acquired = harness.queue.acquire(harness.now_ms, "ann", 9, below=4)
    assert [(each.first, each.last) for each in acquired] == [(3, 3)]
    assert harness.gets("ann", 9) == [4]


def test_consecutive_messages_of_an_owner_are_one_range() -> None:
    harness = LaneHarness(0, 1, 1, 2, 0, start=CHUNK_SIZE - 2)
    first = CHUNK_SIZE - 2
    acquired = harness.queue.acquire(harness.now_ms, "ann", 9)
    assert [(each.first - first, each.last - first) for each in acquired] == [(0, 2), (4, 4)]


def test_a_queue_without_a_table_delivers_nothing() -> None:
    harness = PartitionHarness(lanes=3)
    harness.queue.attach("ann", A)
    harness.reads(2, lanes=array("H", [0, 1]))
    assert harness.gets("ann", 9) == []
    assert not harness.queue.may_get("ann")
    harness.queue.assign(harness.now_ms, LaneTable(epoch=1, owners=[A, A, A], epochs=[1, 1, 1]))
    assert harness.queue.may_get("ann")
    assert harness.gets("ann", 9) == [0, 1]


def test_a_released_message_is_delivered_before_later_ones_of_the_owner() -> None:
    harness = LaneHarness(0, 1, 0, 1)
    assert harness.gets("ann", 2) == [0, 1]
    harness.says("ann", RELEASE, 0)
    assert harness.gets("ann", 9) == [0, 2, 3]


def test_a_message_is_delivered_when_it_is_due() -> None:
    harness = LaneHarness()
    harness.reads_lanes(0, 0, 2, deferred=[(0, harness.now_ms + 500)])
    assert harness.gets("ann", 9) == [1]
    harness.passes(500)
    assert harness.queue.may_get("ann")
    assert not harness.queue.may_get("ben") or harness.gets("ben", 9) == [2]
    assert harness.gets("ann", 9) == [0]


def test_expired_and_deleted_messages_are_skipped() -> None:
    harness = LaneHarness()
    harness.reads_lanes(0, 0, 0, 0, expiring=[(1, harness.now_ms + 100)])
    harness.passes(100)
    harness.queue.trimmed(harness.now_ms, 1)
    assert harness.gets("ann", 9) == [2, 3]
    harness.check_counters()


def test_a_revoked_lane_gives_no_messages_and_its_owner_finishes_those_that_it_holds() -> None:
    harness = LaneHarness(0, 0, 1)
    assert harness.gets("ann", 1) == [0]
    assert harness.assigns(A, A, B, revoked={0}, present={A, B}) == Withdrawn(0, 0)
    assert harness.gets("ann", 9) == [2]
    assert harness.says("ann", ACCEPT, 0) == TAKEN
    harness.assigns(B, A, B, present={A, B})
    assert harness.gets("ben", 9) == [1]


def test_a_lane_that_moves_takes_its_messages_from_an_owner_at_work_without_counting_them() -> None:
    harness = LaneHarness(0, 0, 1, delivery_limit=1)
    assert harness.gets("ann", 9) == [0, 1, 2]
    assert harness.assigns(B, A, B, present={A, B}) == Withdrawn(returned=2, released=0)
    assert harness.queue.leased_count == 1
    (again,) = harness.queue.acquire(harness.now_ms, "ben", 9)
    assert (again.first, again.last, again.deliveries) == (0, 1, 1)


def test_messages_that_an_owner_held_when_it_crashed_become_suspects_and_do_not_count() -> None:
    harness = LaneHarness(0, 0, 1, 2, delivery_limit=2)
    assert harness.gets("ann", 2) == [0, 1]
    assert harness.suspects() == []
    assert harness.assigns(B, B, B, present={B}) == Withdrawn(returned=2, released=0)
    assert harness.suspects() == [(0, 1)]
    (got,) = harness.queue.acquire(harness.now_ms, "ben", 9)
    assert (got.first, got.last, got.deliveries) == (0, 3, 1)


def test_a_message_that_crashes_each_of_its_owners_is_a_dead_letter_and_no_other_message_is() -> None:
    """0 has the key that crashes; its owners had fetched 1 to 5 of the same lanes, and never began them."""
    harness = LaneHarness(0, 0, 1, 0, 1, 1, delivery_limit=3)
    harness.crashes_owner(announced=[])
    for _ in range(2):
        harness.crashes_owner(announced=[0])
        assert harness.queue.take_dead_letters() == []
    harness.crashes_owner(announced=[0])
    (letter,) = harness.queue.take_dead_letters()
    assert (letter.first, letter.last, letter.deliveries) == (0, 0, 3)
    harness.queue.dead_letters_copied(0, 0)
    for _ in range(20):
        harness.crashes_owner(announced=[])
    assert harness.queue.take_dead_letters() == []
    harness.check_counters()


def test_only_suspects_are_remembered_as_announced() -> None:
    harness = LaneHarness(0, 0, delivery_limit=1)
    harness.crashes_owner(announced=[0, 1])
    assert harness.queue.take_dead_letters() == []
    harness.crashes_owner(announced=[1])
    (letter,) = harness.queue.take_dead_letters()
    assert (letter.first, letter.last) == (1, 1)


def test_a_message_that_its_member_does_not_hold_cannot_be_announced() -> None:
    harness = LaneHarness(0, 2, delivery_limit=1)
    harness.crashes_owner(announced=[])
    harness.queue.attach("ben", B)
    harness.assigns(B, B, B, present={B})
    assert not harness.queue.announce(harness.now_ms, "ben", 0, 0)
    assert harness.gets("ben", 1) == [0]
    assert not harness.queue.announce(harness.now_ms, "ben", 0, 1)
    assert harness.queue.announce(harness.now_ms, "ben", 0, 0)


def test_an_announced_message_that_its_owner_gave_back_does_not_count_when_it_crashes() -> None:
    for give_back in ("hand_back", "the lane", "the interrupted lane"):
        harness = LaneHarness(0, delivery_limit=1)
        harness.crashes_owner(announced=[])
        harness.queue.attach("ben", B)
        harness.assigns(B, A, A, present={A, B})
        assert harness.gets("ben", 1) == [0]
        harness.queue.announce(harness.now_ms, "ben", 0, 0)
        if give_back == "hand_back":
            assert harness.queue.hand_back(harness.now_ms, "ben", 0, 0)
        elif give_back == "the interrupted lane":
            harness.queue.release_member(harness.now_ms, "ben")
            harness.queue.attach("ben", B)
        if give_back != "hand_back":
            harness.assigns(A, A, A, present={A, B})
            harness.assigns(B, A, A, present={A, B})
        assert harness.gets("ben", 1) == [0]
        harness.assigns(A, A, A, present={A})
        assert harness.queue.take_dead_letters() == [], give_back


def test_suspects_are_forgotten_when_they_are_done() -> None:
    harness = LaneHarness(0, 0, 0)
    harness.crashes_owner(announced=[])
    assert harness.suspects() == [(0, 2)]
    harness.queue.attach("ben", B)
    harness.assigns(B, B, B, present={B})
    assert harness.gets("ben", 2) == [0, 1]
    harness.says("ben", ACCEPT, 0)
    harness.assigns(A, B, B, present={A, B})
    assert harness.suspects() == [(1, 2)]


def test_the_delivery_of_a_message_in_hand_does_not_survive_a_change_of_leaders() -> None:
    """Otherwise a message that waits behind others of its key would be a dead letter after some elections."""
    harness = LaneHarness(0, 0, 0, 0, 0, delivery_limit=2)
    for done in range(3):
        assert harness.gets("ann", 9) == list(range(done, 5))
        harness.says("ann", ACCEPT, done)
        harness.saves()
        harness.crashes()
        assert harness.queue.take_dead_letters() == []
        harness.queue.attach("ann", A)
        harness.queue.assign(harness.now_ms, harness.lanes)
        harness.reads_lanes(*[0] * (5 - harness.queue.next_offset))


def test_an_owner_at_work_gets_its_messages_again_as_the_same_delivery() -> None:
    """Its connection breaks again and again, or it renews too late: most messages were not begun."""
    harness = LaneHarness(0, 1, 2, delivery_limit=2, lease_ms=1000)
    harness.assigns(A, A, B, present={A, B})
    for _ in range(3):
        (again,) = harness.queue.acquire(harness.now_ms, "ann", 9)
        assert (again.first, again.last, again.deliveries) == (0, 1, 1)
        harness.queue.release_member(harness.now_ms, "ann")
        harness.queue.attach("ann", A)
        assert harness.gets("ann", 9) == [0, 1]
        harness.passes(1000)
    assert harness.queue.take_dead_letters() == []
    harness.check_counters()


def test_announced_messages_of_a_broken_connection_count_as_delivered_once_their_owner_has_crashed() -> None:
    """Otherwise a message that crashes each of its workers would be delivered for ever."""
    harness = LaneHarness(0, 0, 1, 2, delivery_limit=2)
    for _ in range(2):
        harness.crashes_owner(announced=[1], breaks_first=True)
    first, second, third = harness.gets_ranges("ben", B)
    assert (first.first, first.last, first.deliveries) == (0, 0, 1)
    assert (second.first, second.last, second.deliveries) == (1, 1, 2)
    assert (third.first, third.last, third.deliveries) == (2, 3, 1)
    harness.queue.release_member(harness.now_ms, "ben")
    harness.crashes_owner(announced=[1], breaks_first=True)
    (letter,) = harness.queue.take_dead_letters()
    assert (letter.first, letter.last) == (1, 1)
    harness.check_counters()


def test_an_interrupted_message_that_another_owner_got_does_not_count_for_the_one_before() -> None:
    harness = LaneHarness(0, delivery_limit=2)
    harness.assigns(A, A, B, present={A, B})
    harness.gets("ann", 1)
    harness.queue.release_member(harness.now_ms, "ann")
    harness.assigns(B, A, B, present={A, B})
    harness.assigns(B, B, B, present={B})
    (got,) = harness.queue.acquire(harness.now_ms, "ben", 1)
    assert got.deliveries == 1


def test_acknowledgements_of_an_owner_that_lost_the_lane_are_refused_as_fenced() -> None:
    harness = LaneHarness(0, 1, 0)
    harness.gets("ann", 9)
    harness.assigns(B, A, B, present={B})
    assert harness.says("ann", ACCEPT, 0) == FENCED
    assert harness.says("ann", REJECT, 0, 1) == FENCED
    assert harness.says("ann", ACCEPT, 1) == TAKEN
    assert harness.gets("ben", 9) == [0, 2]
    assert harness.says("ann", ACCEPT, 2) == FENCED
    assert harness.says("ben", ACCEPT, 0) == TAKEN


def test_an_acknowledgement_of_an_earlier_epoch_than_the_lane_is_refused() -> None:
    """ann lost the lane, got it back, and does not know it: what it acknowledges is work of its first time."""
    harness = LaneHarness(0, 1)
    harness.gets("ann", 9)
    first_epoch = harness.lanes.epoch
    harness.assigns(B, A, B)
    harness.assigns(A, A, B)
    assert harness.gets("ann", 9) == [0]
    queue, now_ms = harness.queue, harness.now_ms
    assert queue.acknowledge(now_ms, "ann", 0, 0, ACCEPT, epoch=first_epoch) == FENCED
    assert queue.acknowledge(now_ms, "ann", 1, 1, ACCEPT, epoch=first_epoch) == TAKEN
    assert queue.acknowledge(now_ms, "ann", 0, 0, ACCEPT, epoch=harness.lanes.epoch) == TAKEN


def test_a_lane_with_a_new_epoch_takes_its_messages_from_the_same_owner_too() -> None:
    """The owner was to hand the lane over, and may have dropped its messages when it learned that it keeps the lane."""
    harness = LaneHarness(0, 1)
    harness.gets("ann", 9)
    first_epoch = harness.lanes.epoch
    kept = LaneTable(epoch=2, owners=[A, A, B], epochs=[2, 1, 1], present={A, B})
    assert harness.queue.assign(harness.now_ms, kept) == Withdrawn(returned=1, released=0)
    assert harness.gets("ann", 9) == [0]
    assert harness.queue.acknowledge(harness.now_ms, "ann", 0, 0, ACCEPT, epoch=first_epoch) == FENCED


def test_a_lease_that_ended_by_itself_is_not_called_fenced() -> None:
    harness = LaneHarness(0, lease_ms=1000)
    harness.gets("ann", 1)
    harness.passes(1000)
    assert harness.says("ann", ACCEPT, 0) == NOT_YOURS


def test_an_older_table_changes_nothing() -> None:
    harness = LaneHarness(0)
    harness.gets("ann", 1)
    old = LaneTable(epoch=0, owners=[B, B, B], epochs=[0, 0, 0])
    assert harness.queue.assign(harness.now_ms, old) == Withdrawn(0, 0)
    assert harness.says("ann", ACCEPT, 0) == TAKEN


def test_a_second_member_of_an_owner_waits_until_the_first_holds_nothing() -> None:
    harness = LaneHarness(0, 0)
    harness.queue.attach("amy", A)
    assert harness.gets("ann", 1) == [0]
    assert not harness.queue.may_get("amy")
    assert harness.gets("amy", 9) == []
    harness.queue.release_member(harness.now_ms, "ann")
    assert harness.queue.may_get("amy")
    assert harness.gets("amy", 9) == [0, 1]


def test_the_leases_of_a_partition_are_shared_between_its_owners() -> None:
    """ann could otherwise hold so many that ben gets none."""
    harness = LaneHarness(*[0, 0, 2] * 10, max_leased=6)
    assert len(harness.gets("ann", 9)) == 3
    assert not harness.queue.may_get("ann")
    assert len(harness.gets("ben", 9)) == 3
    assert harness.queue.leased_count == 6


def test_a_member_without_an_owner_gets_messages_of_any_lane() -> None:
    """The broker itself settles messages like this."""
    harness = LaneHarness(0, 2, 1)
    assert harness.gets("penstock", 2) == [0, 1]
    assert harness.queue.hand_back(harness.now_ms, "penstock", 0, 0)
    assert harness.says("penstock", ACCEPT, 1) == TAKEN
    assert harness.gets("ann", 9) == [0, 2]


def test_reading_goes_on_beyond_messages_of_an_owner_that_does_not_take_them() -> None:
    harness = LaneHarness(*[0] * 9, max_ahead=10)
    assert harness.queue.wants_more(1)
    harness.reads_lanes(0)
    assert not harness.queue.wants_more(1)
    harness.gets("ann", 1)
    assert harness.queue.wants_more(1)


def test_lanes_survive_a_restart() -> None:
    harness = LaneHarness(0, 2, 0, 2)
    harness.gets("ann", 9)
    harness.gets("ben", 9)
    harness.says("ann", ACCEPT, 0)
    harness.says("ben", REJECT, 1)
    harness.saves()
    harness.crashes()
    assert harness.gets("ann", 9) == []
    harness.queue.attach("ann", A)
    harness.queue.attach("ben", B)
    harness.queue.assign(harness.now_ms, harness.lanes)
    harness.reads_lanes(2, 0, 2)
    assert harness.gets("ben", 9) == [3]
    assert harness.gets("ann", 9) == [2]
    (letter,) = harness.queue.take_dead_letters()
    assert (letter.first, letter.last) == (1, 1)


def test_no_memory_is_kept_for_messages_that_were_finished_some_other_way() -> None:
    harness = LaneHarness()
    for _ in range(3):
        first = harness.queue.next_offset
        late = [(first + each, harness.now_ms + 10) for each in range(STALE_MIN)]
        harness.reads_lanes(*[1] * STALE_MIN, expiring=late)
        harness.passes(10)
    harness.reads_lanes(0, 1)
    assert harness.queue._table._lanes is not None
    assert harness.queue._table._lanes._entries <= STALE_MIN + 4
    assert len(harness.gets("ann", 9)) == 2


def test_the_description_tells_of_lanes() -> None:
    harness = LaneHarness(0, 0, 2)
    described = harness.queue.describe()
    assert (described.ready_lanes, described.lane_owners, described.lane_epoch) == (2, 2, 1)
    assert PartitionHarness(1).queue.describe().lane_owners == 0


def test_lanes_need_a_lane_for_each_offset_and_no_other_order() -> None:
    harness = LaneHarness()
    with pytest.raises(ValueError, match="one lane for each offset"):
        harness.reads(2)
    with pytest.raises(ValueError, match="key order and lanes"):
        harness.queue.configure(QueueSettings())
    for settings in (
        QueueSettings(lanes=3, key_ordered=True),
        QueueSettings(lanes=3, strict=True),
        QueueSettings(lanes=65_536),
    ):
        with pytest.raises(ConfigError):
            settings.validate()
