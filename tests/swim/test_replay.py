"""Each packet is accepted once."""

from random import Random

from penstock.swim import Session
from penstock.swim.replay import SESSIONS_PER_SENDER, WINDOW, ReplayGuard
from penstock.types import NodeId
from tests.swim.simulated_cluster import replica

ALICE = replica(1)


def test_a_packet_is_taken_once() -> None:
    guard = ReplayGuard(10)
    assert guard.accept(ALICE, 1, 0)
    assert not guard.accept(ALICE, 1, 0)


def test_packets_may_overtake_one_another_within_the_window() -> None:
    guard = ReplayGuard(10)
    order = list(range(WINDOW))
    Random(1).shuffle(order)
    assert all(guard.accept(ALICE, 1, sequence) for sequence in order)
    assert not any(guard.accept(ALICE, 1, sequence) for sequence in order)


def test_sequences_below_the_window_count_as_seen() -> None:
    guard = ReplayGuard(10)
    assert guard.accept(ALICE, 1, WINDOW)
    assert guard.accept(ALICE, 1, 1)
    assert not guard.accept(ALICE, 1, 0)


def test_a_leap_leaves_nothing_of_the_old_window_and_takes_no_memory() -> None:
    guard = ReplayGuard(10)
    assert guard.accept(ALICE, 1, 5)
    assert guard.accept(ALICE, 1, 2**62)
    assert guard.accept(ALICE, 1, 2**62 - WINDOW + 1)
    assert not guard.accept(ALICE, 1, 5)


def test_a_new_boot_has_its_own_window_and_ends_the_old_one() -> None:
    guard = ReplayGuard(10)
    assert guard.accept(ALICE, 1, 500)
    assert guard.accept(ALICE, 2, 0)
    assert not guard.accept(ALICE, 1, 501)
    assert guard.accept(ALICE, 2, 1)


def test_senders_do_not_share_a_window() -> None:
    guard = ReplayGuard(10)
    assert guard.accept(ALICE, 1, 0)
    assert guard.accept(replica(1, folder=9), 1, 0)
    assert guard.accept(replica(2), 1, 0)


def test_with_too_many_senders_the_longest_silent_one_is_forgotten() -> None:
    guard = ReplayGuard(3)
    for node in (1, 2, 3, 1, 4):
        guard.accept(replica(node), 1, node if len(guard) < 3 else 100 + node)
    assert len(guard) == 3
    assert not guard.accept(replica(1), 1, 1)
    assert guard.accept(replica(2), 1, 2)


def test_the_window_agrees_with_a_plain_set() -> None:
    random = Random(5)
    guard, seen, highest = ReplayGuard(10), set(), -1
    for _ in range(20_000):
        sequence = max(0, highest + random.randint(-2 * WINDOW, 40))
        expected = sequence not in seen and sequence > highest - WINDOW
        assert guard.accept(ALICE, 1, sequence) is expected
        seen.add(sequence)
        highest = max(highest, sequence)


def test_while_a_node_is_connected_no_other_session_of_it_counts() -> None:
    guard = ReplayGuard(10)
    guard.connected(Session(ALICE, 5))
    assert not guard.accept(ALICE, 6, 0)
    assert not guard.accept(ALICE, 4, 0)
    assert not guard.accept(replica(1, folder=9), 5, 0)
    assert guard.accept(ALICE, 5, 0)


def test_the_session_of_a_new_connection_counts_although_a_later_one_was_heard() -> None:
    guard = ReplayGuard(10)
    assert guard.accept(ALICE, 5, 0)
    assert guard.accept(ALICE, 6, 0)  # a copy
    assert not guard.accept(ALICE, 5, 1)
    guard.connected(Session(ALICE, 5))
    assert guard.accept(ALICE, 5, 1)


def test_a_session_that_counts_again_still_takes_every_packet_once() -> None:
    guard = ReplayGuard(10)
    assert guard.accept(ALICE, 5, 0)
    for copy in range(1, SESSIONS_PER_SENDER):
        assert guard.accept(ALICE, 5 + copy, 0)
    guard.connected(Session(ALICE, 5))
    assert not guard.accept(ALICE, 5, 0)


def test_after_the_connection_has_ended_a_later_boot_takes_over() -> None:
    guard = ReplayGuard(10)
    guard.connected(Session(ALICE, 5))
    assert guard.accept(ALICE, 5, 0)
    guard.disconnected(NodeId(ALICE.node))
    assert not guard.accept(ALICE, 4, 0)
    assert guard.accept(ALICE, 6, 0)


def test_many_boots_keep_a_bounded_number_of_windows() -> None:
    guard = ReplayGuard(10)
    assert all(guard.accept(ALICE, epoch, 0) for epoch in range(100))
    assert len(guard._senders[ALICE].windows) == SESSIONS_PER_SENDER
