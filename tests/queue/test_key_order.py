"""One message of a key at a time, in order, whichever members join or leave. [7]"""

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.queue.key_order import KeyOrder
from penstock.queue.settings import RetryBackoffSettings
from penstock.queue.states import CHUNK_SIZE
from tests.queue.scene import ACCEPT, REJECT, RELEASE, TAKEN, Scene


def keyed(**settings: object) -> Scene:
    """a b a - a b, where - has no key."""
    scene = Scene(key_ordered=True, **settings)
    scene.reads_keys(1, 2, 1, None, 1, 2)
    return scene


def test_the_next_message_of_a_key_waits_until_the_one_before_it_is_done() -> None:
    scene = keyed()
    assert scene.gets("ann", 9) == [0, 1, 3]
    assert scene.queue.waiting_count == 3
    scene.says("ann", ACCEPT, 0)
    assert scene.gets("ben", 9) == [2]
    scene.says("ann", ACCEPT, 1)
    assert scene.gets("cat", 9) == [5]
    assert scene.says("ben", ACCEPT, 2) == TAKEN
    assert scene.gets("ann", 9) == [4]


def test_one_member_gets_one_message_of_a_key_at_a_time_too() -> None:
    scene = Scene(key_ordered=True)
    scene.reads_keys(*[7] * 5)
    for offset in range(5):
        assert scene.gets("ann", 9) == [offset]
        assert scene.gets("ben", 9) == []
        scene.says("ann", ACCEPT, offset)


def test_a_released_message_stays_the_first_of_its_key() -> None:
    scene = keyed()
    scene.gets("ann", 9)
    scene.says("ann", RELEASE, 0)
    assert scene.gets("ben", 9) == [0]


def test_a_key_waits_while_its_first_message_rests() -> None:
    scene = keyed(retry_backoff=RetryBackoffSettings(first_ms=300))
    scene.gets("ann", 9)
    scene.says("ann", RELEASE, 0)
    scene.says("ann", ACCEPT, 1)
    assert scene.gets("ben", 9) == [5]
    scene.passes(299)
    assert scene.gets("ben", 9) == []
    scene.passes(1)
    assert scene.gets("ben", 9) == [0]


def test_a_key_waits_while_a_message_of_it_is_not_due() -> None:
    scene = Scene(key_ordered=True)
    scene.reads(3, keys=[1, 1, 2], deferred=[(0, scene.now_ms + 500)])
    assert scene.gets("ann", 9) == [2]
    scene.passes(500)
    assert scene.gets("ann", 9) == [0]
    scene.says("ann", ACCEPT, 0)
    assert scene.gets("ann", 9) == [1]


def test_a_message_that_becomes_due_behind_another_of_its_key_waits_on() -> None:
    scene = Scene(key_ordered=True)
    scene.reads(2, keys=[1, 1], deferred=[(1, scene.now_ms + 500)])
    scene.gets("ann", 9)
    scene.passes(500)
    assert scene.gets("ben", 9) == []
    assert scene.queue.waiting_count == 1
    scene.says("ann", ACCEPT, 0)
    assert scene.gets("ben", 9) == [1]


def test_order_survives_members_that_disappear_and_leases_that_end() -> None:
    scene = keyed(lease_ms=1000)
    scene.gets("ann", 9)
    scene.queue.release_member(scene.now_ms, "ann")
    assert scene.gets("ben", 9) == [0, 1, 3]
    scene.passes(1000)
    assert scene.gets("cat", 9) == [0, 1, 3]


def test_an_expired_message_leaves_its_key_from_any_place() -> None:
    scene = Scene(key_ordered=True)
    scene.reads(5, keys=[1] * 5, expiring=[(each, scene.now_ms + 100) for each in (1, 2, 4)])
    assert scene.gets("ann", 9) == [0]
    scene.passes(100)
    scene.reads_keys(1)
    scene.says("ann", ACCEPT, 0)
    assert scene.gets("ann", 9) == [3]
    scene.says("ann", ACCEPT, 3)
    assert scene.gets("ann", 9) == [5]


def test_a_key_waits_for_the_burial_of_its_dead() -> None:
    scene = keyed()
    scene.gets("ann", 9)
    scene.says("ann", REJECT, 0)
    (letter,) = scene.queue.take_dead_letters()
    assert scene.gets("ben", 9) == []
    scene.queue.dead_letters_copied(letter.first, letter.last)
    assert scene.gets("ben", 9) == [2]


def test_order_survives_a_restart() -> None:
    scene = keyed()
    scene.gets("ann", 9)
    scene.says("ann", ACCEPT, 0)
    scene.says("ann", REJECT, 1)
    scene.saves()
    scene.crashes()
    assert scene.queue.next_offset == 1
    scene.reads_keys(2, 1, None, 1, 2)
    assert scene.gets("ben", 9) == [2, 3]
    (letter,) = scene.queue.take_dead_letters()
    scene.queue.dead_letters_copied(letter.first, letter.last)
    assert scene.gets("ben", 9) == [5]


def test_retention_lets_the_next_of_a_key_go_on() -> None:
    scene = keyed()
    scene.gets("ann", 9)
    scene.queue.trimmed(scene.now_ms, 3)
    assert scene.gets("ben", 9) == [4, 5]
    scene.check_counters()


def test_reading_stops_when_too_many_wait_for_their_key() -> None:
    scene = Scene(key_ordered=True, max_waiting=100)
    scene.reads_keys(*[1] * 100)
    assert scene.queue.wants_more(2)
    scene.reads_keys(1)
    assert not scene.queue.wants_more(2)


def test_nothing_is_kept_of_keys_that_are_done() -> None:
    scene = Scene(key_ordered=True)
    for round_number in range(20):
        scene.reads_keys(*[offset % 50 + 1000 * round_number for offset in range(500)])
        while offsets := scene.gets("ann", 500):
            for offset in offsets:
                scene.says("ann", ACCEPT, offset)
    order = scene.queue._table._key_order
    assert (len(order), order._after, order._before) == (0, {}, {})
    assert all(not chunk.keys for chunk in scene.queue._table.chunks.values())


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_lanes_are_what_lists_would_be(steps: list[tuple[int, bool]], chance: object) -> None:
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
    scene = Scene(key_ordered=True, start=CHUNK_SIZE - 1)
    scene.reads_keys(9, 9)
    assert scene.gets("ann", 9) == [CHUNK_SIZE - 1]
    scene.says("ann", ACCEPT, CHUNK_SIZE - 1)
    assert scene.queue.describe().chunks == 1
    assert scene.gets("ann", 9) == [CHUNK_SIZE]
