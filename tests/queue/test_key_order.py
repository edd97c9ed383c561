"""One message of a key at a time, in order, whichever members join or leave. [7]"""

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.queue.key_order import KeyOrder
from penstock.queue.settings import RetryBackoffSettings
from penstock.queue.states import CHUNK_SIZE
from tests.queue.partition_harness import ACCEPT, REJECT, RELEASE, TAKEN, PartitionHarness


def keyed(**settings: object) -> PartitionHarness:
    """Keys a b a - a b, where - has no key."""
    harness = PartitionHarness(key_ordered=True, **settings)
    harness.reads_keys(1, 2, 1, None, 1, 2)
    return harness


def test_the_next_message_of_a_key_waits_until_the_one_before_it_is_done() -> None:
    harness = keyed()
    assert harness.gets("ann", 9) == [0, 1, 3]
    assert harness.queue.waiting_count == 3
    harness.says("ann", ACCEPT, 0)
    assert harness.gets("ben", 9) == [2]
    harness.says("ann", ACCEPT, 1)
    assert harness.gets("cat", 9) == [5]
    assert harness.says("ben", ACCEPT, 2) == TAKEN
    assert harness.gets("ann", 9) == [4]


def test_one_member_gets_one_message_of_a_key_at_a_time_too() -> None:
    harness = PartitionHarness(key_ordered=True)
    harness.reads_keys(*[7] * 5)
    for offset in range(5):
        assert harness.gets("ann", 9) == [offset]
        assert harness.gets("ben", 9) == []
        harness.says("ann", ACCEPT, offset)


def test_a_released_message_stays_the_first_of_its_key() -> None:
    harness = keyed()
    harness.gets("ann", 9)
    harness.says("ann", RELEASE, 0)
    assert harness.gets("ben", 9) == [0]


def test_a_key_waits_while_its_first_message_waits_for_a_retry() -> None:
    harness = keyed(retry_backoff=RetryBackoffSettings(first_ms=300))
    harness.gets("ann", 9)
    harness.says("ann", RELEASE, 0)
    harness.says("ann", ACCEPT, 1)
    assert harness.gets("ben", 9) == [5]
    harness.passes(299)
    assert harness.gets("ben", 9) == []
    harness.passes(1)
    assert harness.gets("ben", 9) == [0]


def test_a_key_waits_while_a_message_of_it_is_not_due() -> None:
    harness = PartitionHarness(key_ordered=True)
    harness.reads(3, keys=[1, 1, 2], deferred=[(0, harness.now_ms + 500)])
    assert harness.gets("ann", 9) == [2]
    harness.passes(500)
    assert harness.gets("ann", 9) == [0]
    harness.says("ann", ACCEPT, 0)
    assert harness.gets("ann", 9) == [1]


def test_a_message_that_becomes_due_still_waits_for_an_earlier_one_of_its_key() -> None:
    harness = PartitionHarness(key_ordered=True)
    harness.reads(2, keys=[1, 1], deferred=[(1, harness.now_ms + 500)])
    harness.gets("ann", 9)
    harness.passes(500)
    assert harness.gets("ben", 9) == []
    assert harness.queue.waiting_count == 1
    harness.says("ann", ACCEPT, 0)
    assert harness.gets("ben", 9) == [1]


def test_order_survives_members_that_disappear_and_leases_that_end() -> None:
    harness = keyed(lease_ms=1000)
    harness.gets("ann", 9)
    harness.queue.release_member(harness.now_ms, "ann")
    assert harness.gets("ben", 9) == [0, 1, 3]
    harness.passes(1000)
    assert harness.gets("cat", 9) == [0, 1, 3]


def test_an_expired_message_leaves_its_key_at_any_position() -> None:
    harness = PartitionHarness(key_ordered=True)
    harness.reads(5, keys=[1] * 5, expiring=[(each, harness.now_ms + 100) for each in (1, 2, 4)])
    assert harness.gets("ann", 9) == [0]
    harness.passes(100)
    harness.reads_keys(1)
    harness.says("ann", ACCEPT, 0)
    assert harness.gets("ann", 9) == [3]
    harness.says("ann", ACCEPT, 3)
    assert harness.gets("ann", 9) == [5]


def test_a_key_waits_until_its_dead_letter_is_copied() -> None:
    harness = keyed()
    harness.gets("ann", 9)
    harness.says("ann", REJECT, 0)
    (letter,) = harness.queue.take_dead_letters()
    assert harness.gets("ben", 9) == []
    harness.queue.dead_letters_copied(letter.first, letter.last)
    assert harness.gets("ben", 9) == [2]


def test_order_survives_a_restart() -> None:
    harness = keyed()
    harness.gets("ann", 9)
    harness.says("ann", ACCEPT, 0)
    harness.says("ann", REJECT, 1)
    harness.saves()
    harness.crashes()
    assert harness.queue.next_offset == 1
    harness.reads_keys(2, 1, None, 1, 2)
    assert harness.gets("ben", 9) == [2, 3]
    (letter,) = harness.queue.take_dead_letters()
    harness.queue.dead_letters_copied(letter.first, letter.last)
    assert harness.gets("ben", 9) == [5]


def test_retention_releases_the_next_message_of_a_key() -> None:
    harness = keyed()
    harness.gets("ann", 9)
    harness.queue.trimmed(harness.now_ms, 3)
    assert harness.gets("ben", 9) == [4, 5]
    harness.check_counters()


def test_reading_stops_when_too_many_wait_for_their_key() -> None:
    harness = PartitionHarness(key_ordered=True, max_waiting=100)
    harness.reads_keys(*[1] * 100)
    assert harness.queue.wants_more(2)
    harness.reads_keys(1)
    assert not harness.queue.wants_more(2)


def test_no_memory_is_kept_for_finished_keys() -> None:
    harness = PartitionHarness(key_ordered=True)
    for round_number in range(20):
        harness.reads_keys(*[offset % 50 + 1000 * round_number for offset in range(500)])
        while offsets := harness.gets("ann", 500):
            for offset in offsets:
                harness.says("ann", ACCEPT, offset)
    order = harness.queue._table._key_order
    assert (len(order), order._after, order._before) == (0, {}, {})
    assert all(not chunk.keys for chunk in harness.queue._table.chunks.values())


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_lanes_match_a_model_of_lists(steps: list[tuple[int, bool]], chance: object) -> None:
    order = KeyOrder()
    lists: dict[int, list[int]] = {key: [] for key in range(4)}
    for offset, (key, joins) in enumerate(steps):
        lane = lists[key]
        if joins or not lane:
            assert order.append(offset, key) == bool(lane)
            lane.append(offset)
        else:
            leaving = chance.choice(lane)  # type: ignore[attr-defined]
            was_first = lane[0] == leaving
            lane.remove(leaving)
            assert order.remove(leaving, key) == (lane[0] if was_first and lane else None)
        waiting = [each for some in lists.values() for each in some if order.is_blocked(each)]
        assert waiting == [each for some in lists.values() for each in some[1:]]
    assert len(order) == sum(bool(some) for some in lists.values())


def test_keys_cross_the_border_of_two_chunks() -> None:
    harness = PartitionHarness(key_ordered=True, start=CHUNK_SIZE - 1)
    harness.reads_keys(9, 9)
    assert harness.gets("ann", 9) == [CHUNK_SIZE - 1]
    harness.says("ann", ACCEPT, CHUNK_SIZE - 1)
    assert harness.queue.describe().chunks == 1
    assert harness.gets("ann", 9) == [CHUNK_SIZE]
