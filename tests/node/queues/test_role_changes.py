"""A bug in the end of one queue keeps no other queue, and no queue's stored state, from hearing of the new role."""

from contextlib import suppress

import pytest

from penstock.cluster import STATE_TOPIC
from penstock.errors import KafkaError
from penstock.node.calls import BROKER
from penstock.node.calls.messages.queues import ReceiveRequest
from penstock.node.queues import QueueDriver
from penstock.node.queues.manager import QueueManager
from penstock.node.replication.partition import Partition
from tests.log_records import own_records
from tests.node.queues.test_waiting import Scene, play


async def open_queue(scene: Scene, group_id: str) -> QueueDriver:
    request = ReceiveRequest(group_id, "c", "", scene.partitions, 1, 1_000_000, 0, False)
    while True:  # a busy machine takes more than one request for that
        with suppress(KafkaError):
            await scene.node.queues.router.receive(request, caller=BROKER)
        for driver in scene.node.queues.manager.drivers_of(group_id):
            if driver.is_open:
                return driver


def test_a_bug_in_the_end_of_one_queue_ends_the_other_queues_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(scene: Scene) -> None:
        faulty, other = [await open_queue(scene, group_id) for group_id in ("first", "second")]
        end = QueueDriver.end

        def fails(driver: QueueDriver, why: KafkaError) -> None:
            if driver is faulty:
                raise ZeroDivisionError
            end(driver, why)

        partition = scene.node.leader("jobs", 0)
        with monkeypatch.context() as patch:
            patch.setattr(QueueDriver, "end", fails)
            patch.setattr(partition, "leads", False)
            scene.node.queues.role_changed(partition)
        assert faulty.ended is None
        assert other.ended is not None

    play(scenario)
    (line,) = own_records(caplog)
    assert line.getMessage().startswith("a bug in the end of the queue 'first' on jobs-0")


def test_the_stored_state_hears_of_a_role_whatever_the_queues_do_with_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(manager: QueueManager, partition: Partition) -> None:
        raise ZeroDivisionError

    async def scenario(scene: Scene) -> None:
        driver = await open_queue(scene, "first")
        cores = scene.node.queues.state.cores
        index = cores.index_of("first")
        partition = scene.node.leader(STATE_TOPIC, index)
        host = cores.get(index)
        with monkeypatch.context() as patch:
            patch.setattr(QueueManager, "role_changed", fails)
            patch.setattr(partition, "leads", False)
            scene.node.queues.role_changed(partition)
        assert host.is_stopped
        assert driver.ended is None

    play(scenario)
    (line,) = own_records(caplog)
    assert line.getMessage().startswith(f"a bug in the queues on {STATE_TOPIC}")
