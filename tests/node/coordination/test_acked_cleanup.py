"""`cleanup.policy=acked` on one node: which records are deleted, which are kept, and the memory that is released."""

import asyncio
import posixpath
from collections.abc import Awaitable, Callable
from struct import pack
from uuid import uuid4

from penstock.batch import EndMarker, Record, build_batch, check_batch
from penstock.cluster import OFFSETS_TOPIC, NewTopic, decisions
from penstock.config import Address, GroupSettings, NodeConfig
from penstock.errors import ErrorCode, KafkaError
from penstock.groups import (
    CommitRequest,
    GroupState,
    JoinRequest,
    LeavingMember,
    OffsetToCommit,
    Protocol,
    SyncRequest,
)
from penstock.log.disk import Disk
from penstock.log.memory_disk import MemoryDisk
from penstock.log.rolling import ACKED_MEMORY_SEGMENT_BYTES
from penstock.node import Node, Partition
from penstock.node.calls import BROKER
from penstock.node.queues import Acknowledgement
from penstock.queue.values import AckKind
from penstock.types import Producer

NOW_MS = 1_700_000_000_000
MINUTE_MS = 60_000
ACCEPT = bytes([AckKind.ACCEPT])
MEBIBYTE = 1024 * 1024


class SetClock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def wall_ms(self) -> int:
        return self.now_ms


class CleanupHarness:
    """One node with the topic `t` of two partitions, and a clock that tests set."""

    def __init__(self, node: Node, clock: SetClock) -> None:
        self.node = node
        self.clock = clock
        self._epoch = 0

    @property
    def partition(self) -> Partition:
        return self.node.leader("t", 0)

    @property
    def start(self) -> int:
        return self.partition.start_offset

    async def write(self, count: int, *, size: int = 100, index: int = 0) -> None:
        """Records with the current time, each in a batch of its own."""
        partition = self.node.leader("t", index)
        for _ in range(count):
            rows = [Record(0, self.clock.now_ms, None, bytes(size), ())]
            batch = memoryview(bytearray(build_batch(rows)))
            partition.append(batch, check_batch(batch))
        await self.node.storage.flusher.drain()

    async def write_transaction(self, *, commit: bool) -> None:
        """A record of a transaction, and its marker."""
        rows = [Record(0, self.clock.now_ms, None, bytes(100), ())]
        batch = memoryview(
            bytearray(
                build_batch(
                    rows, producer_id=7, producer_epoch=self._epoch, base_sequence=0, transactional=True
                )
            )
        )
        self.partition.append(batch, check_batch(batch))
        self._epoch += 1
        marker = EndMarker(commit, 1)
        self.partition.append_marker(marker, producer_id=7, producer_epoch=self._epoch)
        await self.node.storage.flusher.drain()

    async def commit(
        self,
        group: str,
        offset: int,
        *,
        index: int = 0,
        ttl_ms: int = -1,
        producer: Producer | None = None,
    ) -> None:
        row = OffsetToCommit(topic="t", partition=index, offset=offset, metadata="")
        request = CommitRequest(group_id=group, offsets=(row,), retention_ms=ttl_ms, producer=producer)
        result = await self.node.groups.commit(request)
        assert list(result.errors.values()) == [ErrorCode.NONE]

    async def clean(self, *, later_ms: int = 2 * MINUTE_MS) -> int:
        """Lets time pass, then cleans up; returns the log start."""
        self.clock.now_ms += later_ms
        await self.node.acked.clean()
        return self.start


def play(
    act: Callable[[CleanupHarness], Awaitable[None]], *, disk: Disk | None = None, **configs: str
) -> None:
    """Configs are written with underscores for their dots."""

    async def run() -> None:
        clock = SetClock()
        settings = NodeConfig(
            memory=True,
            http=None,
            kafka=Address("127.0.0.1", 1),
            groups=GroupSettings(offsets_topic_partitions=3, state_topic_partitions=2),
        )
        node = Node(settings, clock=clock, disk=disk)
        await node.start()
        try:
            named = {name.replace("_", "."): value for name, value in configs.items()}
            new_topic = NewTopic(
                name="t", topic_id=uuid4(), partitions=2, configs={"cleanup.policy": "acked", **named}
            )
            await node.metadata.change(
                lambda state: decisions.create_topic(state, new_topic, node.controller.rules)
            )
            await node.settled()
            await act(CleanupHarness(node, clock))
        finally:
            await node.stop()

    asyncio.run(run())


# --- groups


def test_a_topic_without_consumers_keeps_everything() -> None:
    async def act(harness: CleanupHarness) -> None:
        await harness.write(10)
        assert await harness.clean() == 0
        await harness.node.groups.cores.ensure_topic()
        assert await harness.clean() == 0

    play(act)


def test_records_are_deleted_when_the_slowest_group_has_acked_them_and_not_before() -> None:
    async def act(harness: CleanupHarness) -> None:
        await harness.write(10)
        await harness.commit("quick", 10)
        await harness.commit("slow", 4)
        assert await harness.clean() == 4
        await harness.commit("slow", 9)
        assert await harness.clean() == 9
        assert harness.partition.high_watermark == 10

    play(act)


def test_a_group_that_has_committed_in_one_partition_holds_the_others_back_too() -> None:
    async def act(harness: CleanupHarness) -> None:
        await harness.write(10)
        await harness.write(10, index=1)
        await harness.commit("quick", 10)
        await harness.commit("quick", 10, index=1)
        await harness.commit("half", 10, index=1)
        assert await harness.clean() == 0
        assert harness.node.leader("t", 1).start_offset == 10

    play(act)


def test_an_offset_beyond_the_end_deletes_up_to_the_end() -> None:
    async def act(harness: CleanupHarness) -> None:
        await harness.write(10)
        await harness.commit("ahead", 1000)
        assert await harness.clean() == 10

    play(act)


def test_deleting_a_group_releases_its_records() -> None:
    async def act(harness: CleanupHarness) -> None:
        await harness.write(10)
        await harness.commit("quick", 10)
        await harness.commit("slow", 2)
        assert await harness.clean() == 2
        assert await harness.node.groups.delete(["slow"]) == {"slow": ErrorCode.NONE}
        assert await harness.clean() == 10

    play(act)


def test_an_expired_subscription_releases_its_records() -> None:
    async def act(harness: CleanupHarness) -> None:
        await harness.write(10)
        await harness.commit("quick", 10)
        await harness.commit("lazy", 2, ttl_ms=0)
        await harness.commit("patient", 5, ttl_ms=3_600_000)
        assert await harness.clean() == 5

    play(act)


def test_records_stay_until_their_minimum_age() -> None:
    async def act(harness: CleanupHarness) -> None:
        await harness.write(5)
        harness.clock.now_ms += 1000
        await harness.write(5)
        await harness.commit("group", 10)
        assert await harness.clean(later_ms=MINUTE_MS - 1001) == 0
        assert await harness.clean(later_ms=1) == 5
        assert await harness.clean(later_ms=999) == 5
        assert await harness.clean(later_ms=1) == 10

    play(act, penstock_acked_min_age_ms=str(MINUTE_MS))


def test_other_policies_do_not_delete_acked_records() -> None:
    async def act(harness: CleanupHarness) -> None:
        await harness.write(10)
        await harness.commit("group", 10)
        assert await harness.clean() == 0

    play(act, cleanup_policy="delete")


# --- groups with members


def joining(name: str) -> JoinRequest:
    """A new member of the group `readers`, which reads `t`."""
    metadata = pack(">hih", 0, 1, 1) + b"t" + pack(">i", -1)
    return JoinRequest(
        group_id="readers",
        member_id="",
        new_member_id=name,
        protocol_type="consumer",
        protocols=(Protocol("range", metadata),),
        session_timeout_ms=10_000,
        rebalance_timeout_ms=600_000,
    )


def state(harness: CleanupHarness) -> GroupState | None:
    described = harness.node.groups.describe("readers")
    return None if described is None else described.state


def test_a_group_with_members_and_without_commits_keeps_everything_in_every_state() -> None:
    async def act(harness: CleanupHarness) -> None:
        groups = harness.node.groups
        await harness.write(10)
        await harness.commit("quick", 10)
        await groups.join(joining("first"))
        assert state(harness) is GroupState.COMPLETING_REBALANCE
        assert await harness.clean(later_ms=0) == 0
        await groups.sync(SyncRequest(group_id="readers", generation=1, member_id="first"))
        assert state(harness) is GroupState.STABLE
        assert await harness.clean(later_ms=0) == 0
        second = asyncio.get_running_loop().create_task(groups.join(joining("second")))
        while state(harness) is GroupState.STABLE:
            await asyncio.sleep(0)
        assert state(harness) is GroupState.PREPARING_REBALANCE
        assert await harness.clean(later_ms=0) == 0
        await groups.leave("readers", [LeavingMember(member_id="first")])
        await second
        await groups.leave("readers", [LeavingMember(member_id="second")])
        assert await harness.clean(later_ms=0) == 10

    play(act, penstock_acked_min_age_ms="0")


# --- queues


async def accept(harness: CleanupHarness, group: str, first: int, last: int, *, index: int = 0) -> None:
    topic_id = harness.node.metadata.state.topics["t"].topic_id
    driver = await harness.node.queues.manager.driver(group, topic_id, harness.node.leader("t", index))
    driver.deliver("member", 1000, MEBIBYTE)
    await driver.acknowledge("member", [Acknowledgement(first, last, ACCEPT)])


async def open_queue(harness: CleanupHarness, group: str, index: int = 0) -> None:
    """A queue that begins at the end of the log."""
    topic_id = harness.node.metadata.state.topics["t"].topic_id
    await harness.node.queues.manager.driver(group, topic_id, harness.node.leader("t", index))


def test_a_queue_holds_back_unfinished_records() -> None:
    async def act(harness: CleanupHarness) -> None:
        await harness.write(3)
        await open_queue(harness, "workers")
        await harness.write(7)
        await accept(harness, "workers", 3, 5)
        await accept(harness, "workers", 8, 9)
        assert await harness.clean() == 6
        await accept(harness, "workers", 6, 7)
        assert await harness.clean() == 10

    play(act)


def test_an_idle_queue_holds_records_back_until_it_is_deleted() -> None:
    async def act(harness: CleanupHarness) -> None:
        await open_queue(harness, "workers")
        await harness.write(10)
        await harness.commit("group", 10)
        for driver in harness.node.queues.manager.drivers():
            driver.end(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this queue was idle"))
        assert not harness.node.queues.manager.drivers()
        assert await harness.clean() == 0
        await harness.node.queues.overview.forget("workers", caller=BROKER)
        assert await harness.clean() == 10

    play(act)


def test_a_queue_that_is_being_loaded_holds_everything_back() -> None:
    async def act(harness: CleanupHarness) -> None:
        await harness.write(10)
        await harness.commit("group", 10)
        opening = asyncio.get_running_loop().create_task(open_queue(harness, "workers"))
        while not harness.node.queues.manager.drivers():
            await asyncio.sleep(0)
        driver = next(iter(harness.node.queues.manager.drivers()))
        assert not driver.is_open
        assert harness.node.progress.queue_starts(harness.partition.group) == [None]
        await opening
        assert harness.node.progress.queue_starts(harness.partition.group) == [10]
        assert await harness.clean() == 10

    play(act)


def test_an_idle_queue_keeps_all_records_of_an_added_partition() -> None:
    """The queue will read it from its beginning, at an unknown time."""

    async def act(harness: CleanupHarness) -> None:
        rules = harness.node.controller.rules
        for index in (0, 1):
            await open_queue(harness, "away", index)
            await open_queue(harness, "busy", index)
        for driver in harness.node.queues.manager.drivers():
            driver.end(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this queue was idle"))
        await harness.node.metadata.change(lambda state: decisions.create_partitions(state, "t", 3, rules))
        await harness.node.settled()
        await harness.write(5, index=2)
        await accept(harness, "busy", 0, 4, index=2)
        await harness.clean()
        assert harness.node.leader("t", 2).start_offset == 0
        await accept(harness, "away", 0, 2, index=2)
        await harness.clean()
        assert harness.node.leader("t", 2).start_offset == 3

    play(act)


# --- memory


def held_bytes(disk: Disk, path: str) -> int:
    """The size of all files below this folder."""
    total = 0
    for name in disk.list_dir(path):
        inner = posixpath.join(path, name)
        total += held_bytes(disk, inner) if disk.list_dir(inner) else disk.size(inner)
    return total


def test_a_memory_topic_releases_its_memory() -> None:
    disk = MemoryDisk()

    async def act(harness: CleanupHarness) -> None:
        folder = harness.partition.log.path
        await harness.write(2000, size=10_000)
        full = held_bytes(disk, folder)
        assert full > 20_000_000
        await harness.commit("slow", 1000)
        await harness.clean()
        half = held_bytes(disk, folder)
        assert full // 2 <= half <= full // 2 + ACKED_MEMORY_SEGMENT_BYTES + 20_000
        await harness.commit("slow", 2000)
        await harness.clean()
        assert held_bytes(disk, folder) < 10_000  # a checkpoint, and an empty segment
        assert harness.partition.high_watermark == 2000

    play(act, disk=disk, penstock_storage="memory")


def test_a_memory_topic_accepts_batches_larger_than_its_segments() -> None:
    async def act(harness: CleanupHarness) -> None:
        await harness.write(3, size=3 * MEBIBYTE)
        await harness.commit("group", 2)
        assert await harness.clean() == 2
        assert harness.partition.log.size_bytes < 4 * MEBIBYTE

    play(act, penstock_storage="memory", max_message_bytes=str(8 * MEBIBYTE))


# --- transactions


def test_markers_and_aborted_records_are_deleted_like_records_that_were_acked() -> None:
    """0 record  1 record of a transaction  2 commit  3 aborted record  4 abort"""

    async def act(harness: CleanupHarness) -> None:
        await harness.write(1)
        await harness.write_transaction(commit=True)
        await harness.write_transaction(commit=False)
        await harness.commit("group", 2)  # behind the last record, before the marker
        assert await harness.clean() == 2
        await harness.commit("group", 5)
        assert await harness.clean() == 5
        assert harness.partition.high_watermark == 5

    play(act)


def test_offsets_of_an_open_transaction_release_no_record() -> None:
    async def act(harness: CleanupHarness) -> None:
        await harness.write(10)
        await harness.commit("group", 2)
        producer = Producer(7, 0)
        await harness.commit("group", 9, producer=producer)
        assert await harness.clean() == 2
        node = harness.node
        offsets = node.leader(OFFSETS_TOPIC, node.groups.cores.index_of("group"))
        node.led_transactions.write_marker(offsets, producer, EndMarker(True, 1))
        await harness.node.storage.flusher.drain()
        assert await harness.clean() == 9

    play(act)


def test_a_queue_releases_markers_and_those_behind_its_last_record() -> None:
    """0 commit's record  1 commit  2 record  3 record of a transaction  4 commit"""

    async def act(harness: CleanupHarness) -> None:
        await open_queue(harness, "workers")
        await harness.write_transaction(commit=True)
        await harness.write(1)
        await harness.write_transaction(commit=True)
        await accept(harness, "workers", 0, 0)
        assert await harness.clean() == 2
        await accept(harness, "workers", 2, 3)
        assert await harness.clean() == 5

    play(act)
