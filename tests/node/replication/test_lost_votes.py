"""A node that has lost its votes does not know which logs it had, and one without metadata does not know the topics:
in a cluster neither starts."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.config import Address, NodeConfig
from penstock.errors import PromisesLost
from penstock.log import DataFolder
from penstock.log.data_folder import GOSSIP_PATH, VOTES_PATH
from penstock.log.os_disk import OsDisk
from penstock.node import Node
from penstock.node.replication.vote_files import open_votes
from penstock.service import Service
from penstock.types import NodeId, Replica
from tests.kafka.requests import create
from tests.kafka.trio import LastingDisk, Trio
from tests.node.replication import test_repair as mending

FILES = (f"{VOTES_PATH}.0", f"{VOTES_PATH}.1")
MEMORY = "memory"
"""The name of the folder of a node without one."""
LOST = pytest.mark.parametrize("lost", [FILES, FILES[:1], FILES[1:]], ids=["both", "first", "second"])


@pytest.fixture
def trio() -> Iterator[Trio]:
    with Trio() as cluster:
        yield cluster


def start_refused(trio: Trio, node_id: int) -> PromisesLost:
    """The error with which this node refuses to start."""
    service = trio.call(lambda: Service(trio._configs[node_id], disk=trio._disks[node_id]))
    with pytest.raises(PromisesLost) as refused:
        trio.run(service.start())
    return refused.value


@LOST
def test_a_founder_without_votes_and_without_a_partition_does_not_start(
    trio: Trio, lost: tuple[str, ...]
) -> None:
    with trio.client(1) as client:
        create(client, "acked")
    follower = trio.followers("acked")[0]
    trio.stop(follower)
    disk = trio._disks[follower]
    disk.remove_tree("topics/acked-0")
    for path in lost:
        disk.remove(path)
    refused = start_refused(trio, follower)
    assert "the votes of this node are gone" in str(refused)
    assert all(path in str(refused) for path in lost)
    assert f"empty the folder {MEMORY}" in refused.hint
    assert "start the node with the same id" in refused.hint


def test_a_node_with_damaged_votes_does_not_start_either(trio: Trio) -> None:
    trio.stop(3)
    file = trio._disks[3].open(FILES[1])
    file.write_at(9, b"\xff")
    refused = start_refused(trio, 3)
    assert "the votes of this node are damaged" in str(refused)
    assert "start the node with the same id" in refused.hint


def test_the_advice_of_the_refusal_restores_the_node_and_its_data(trio: Trio) -> None:
    with trio.client(1) as client:
        create(client, "acked")
    mending.produce(trio, "acked", range(5))
    follower = trio.followers("acked")[0]
    trio.stop(follower)
    for path in FILES:
        trio._disks[follower].remove(path)
    start_refused(trio, follower)
    trio._disks[follower] = LastingDisk()
    trio.start(follower)
    trio.eventually(lambda: trio.node(follower).partitions.find("acked", 0) is not None)
    trio.eventually(lambda: trio.replica(follower, "acked").log.end_offset == 5)


@pytest.mark.parametrize("rotten", [False, True])
def test_a_node_of_a_cluster_without_its_metadata_ends_with_the_same_advice(trio: Trio, rotten: bool) -> None:
    trio.stop(3)
    disk, folder = trio._disks[3], "topics/__cluster_metadata-0"
    if rotten:
        [segment] = [name for name in disk.list_dir(folder) if name.endswith(".log")]
        disk.open(f"{folder}/{segment}").write_at(20, b"\xff")
        for name in disk.list_dir(folder):
            if name != segment:  # recovery would not read the log because of it
                disk.remove(f"{folder}/{name}")
    else:
        disk.remove_tree(folder)
    service = trio.call(lambda: Service(trio._configs[3], disk=disk))

    async def live() -> None:
        await service.start()
        try:
            await service.wait_ready()
        finally:
            await service.stop()

    with pytest.raises(PromisesLost, match="the metadata of this node is lost") as refused:
        trio.run(live())
    assert "copied from them" not in str(refused.value)
    assert "start the node with the same id" in refused.value.hint


# --- which folders may be without votes


def folder_of(disk: OsDisk, *founders: Replica) -> DataFolder:
    folder = DataFolder.open(disk, node_id=NodeId(1), wait_for_cluster=bool(founders))
    if founders:
        folder.found("c", founders)
    return folder


def test_a_node_that_joined_later_needs_its_votes_too(tmp_path: Path) -> None:
    disk = OsDisk(str(tmp_path))
    with pytest.raises(PromisesLost, match="are gone"):
        open_votes(disk, folder_of(disk, Replica(NodeId(2), 22)), str(tmp_path))


def test_a_node_that_founded_its_cluster_alone_and_was_joined_by_others_needs_its_votes_too(
    tmp_path: Path,
) -> None:
    disk = OsDisk(str(tmp_path))
    folder = folder_of(disk)
    disk.write_file_atomic(GOSSIP_PATH, b"anything")
    with pytest.raises(PromisesLost, match="are gone"):
        open_votes(disk, folder, str(tmp_path))


def test_a_lone_node_takes_over_a_folder_of_an_older_version_without_votes(tmp_path: Path) -> None:
    disk = OsDisk(str(tmp_path))
    folder = folder_of(disk)
    disk.make_dir("topics/old-0")
    _, is_older = open_votes(disk, folder, str(tmp_path))
    assert is_older
    _, is_older = open_votes(disk, folder, str(tmp_path))
    assert not is_older


def test_a_start_that_was_interrupted_before_the_votes_were_created_is_repeated(tmp_path: Path) -> None:
    config = NodeConfig(data_dir=str(tmp_path), kafka=Address("127.0.0.1", 1))

    async def run() -> None:
        node = Node(config)
        await node.start()
        await node.stop()

    DataFolder.open(OsDisk(str(tmp_path)), node_id=NodeId(1)).release()
    asyncio.run(run())
    asyncio.run(run())
