"""The same without asyncio."""

import os
import signal
import threading
import time
from queue import SimpleQueue

import pytest

from penstock.clique import BlockingClique, CallFailed, CliqueError, Closed, Message, Slot, Slots
from penstock.ring import SLOTS

WAIT_S = 60


def responding(address: str, worker: str) -> BlockingClique:
    clique = BlockingClique("pricing", address, worker=worker)

    @clique.responder("quote")
    def quote(message: Message, slot: Slot) -> str:
        words = message.text().split()
        if words[0] == "fail":
            raise ValueError("no price")
        if words[0] == "ask":
            return f"{worker}<{clique.request('quote', 'name', key=words[1], timeout=WAIT_S).decode()}"
        return worker

    return clique


@pytest.fixture
def address(unique) -> str:
    return f"memory://{unique('hub')}"


def test_handlers_run_in_threads_and_messages_of_a_key_in_order(address: str) -> None:
    got: SimpleQueue[tuple[bytes, str]] = SimpleQueue()
    events: list[str] = []
    clique = BlockingClique("pricing", address, worker="w1", lease_ms=30_000)

    @clique.handler("orders")
    def note(message: Message, slot: Slot) -> None:
        time.sleep(0.001)
        got.put((message.value or b"", threading.current_thread().name))

    @clique.on_acquire
    def load(slots: Slots) -> None:
        events.append(f"acquired {len(slots)}")

    @clique.on_release
    def save(slots: Slots) -> None:
        events.append(f"released {len(slots)}")

    with clique:
        assert clique.wait_for_slots(WAIT_S) == SLOTS
        for number in range(20):
            clique.publish("orders", b"%d" % number, key="alice")
        seen = [got.get(timeout=WAIT_S) for _ in range(20)]
        assert clique.status().slots == SLOTS
        assert clique.guarantee.level == "at-least-once"
    assert [value for value, _ in seen] == [b"%d" % number for number in range(20)]
    assert seen[0][1] == "penstock-clique-orders"
    assert events == [f"acquired {SLOTS}", f"released {SLOTS}"]
    clique.close()


def test_requests_also_from_inside_a_responder_to_its_own_key(address: str) -> None:
    with responding(address, "w1") as first, responding(address, "w2") as second:
        second.wait_for_slots(WAIT_S)
        first.wait_for_slots(WAIT_S)
        owners = {}
        for number in range(10):
            owner = first.request("quote", "name", key=f"key-{number}", timeout=WAIT_S).decode()
            asked = second.request("quote", f"ask key-{number}", key=f"key-{number}", timeout=WAIT_S).decode()
            assert asked == f"{owner}<{owner}"
            owners[number] = owner
        assert set(owners.values()) == {"w1", "w2"}
        with pytest.raises(CallFailed, match="ValueError: no price"):
            first.request("quote", "fail", key="alice", timeout=WAIT_S)
        with pytest.raises(TimeoutError):
            first.request("nobody", "?", timeout=0.1)


def test_threads_may_share_it(address: str) -> None:
    with responding(address, "w1") as clique:
        clique.wait_for_slots(WAIT_S)
        answers: SimpleQueue[bytes] = SimpleQueue()

        def ask(number: int) -> None:
            answers.put(clique.request("quote", "name", key=f"key-{number}", timeout=WAIT_S))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers.qsize() == 20


def test_coroutines_are_for_the_other_clique(address: str) -> None:
    clique = BlockingClique("pricing", address)

    async def handler(message: Message, slot: Slot) -> None: ...

    with pytest.raises(TypeError, match="use Clique"):
        clique.handler("orders")(handler)
    with pytest.raises(TypeError, match="use Clique"):
        clique.on_acquire(handler)


def test_it_cannot_be_used_before_the_start_nor_after_the_end(address: str) -> None:
    clique = responding(address, "w1")
    with pytest.raises(Closed):
        clique.publish("orders", b"...")
    with clique:
        pass
    with pytest.raises(Closed):
        clique.request("quote", b"...")
    with pytest.raises(CliqueError, match="was started before"):
        clique.start()


def test_a_start_that_fails_leaves_no_thread(address: str) -> None:
    clique = BlockingClique("pricing", address, guarantee="durable")
    before = set(threading.enumerate())
    with pytest.raises(CliqueError, match="lacks durable messages"):
        clique.start()
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    assert [name for name in left if name.startswith("penstock-clique")] == []


def test_run_works_until_a_signal_comes(address: str) -> None:
    clique = BlockingClique("pricing", address)

    @clique.handler("orders")
    def end(message: Message, slot: Slot) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def publish() -> None:
        while not clique.status().is_member:
            time.sleep(0.01)
        clique.publish("orders", b"...")

    publishing = threading.Thread(target=publish)
    publishing.start()
    clique.run()
    publishing.join()
    assert not clique.status().is_member


def test_the_exit_of_a_handler_ends_run(address: str) -> None:
    clique = BlockingClique("pricing", address)

    @clique.handler("orders")
    def end(message: Message, slot: Slot) -> None:
        raise SystemExit(3)

    def publish() -> None:
        while not clique.status().is_member:
            time.sleep(0.01)
        clique.publish("orders", b"...")

    publishing = threading.Thread(target=publish)
    publishing.start()
    with pytest.raises(SystemExit, match="3"):
        clique.run(grace=1)
    publishing.join()
