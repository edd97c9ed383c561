"""The node's data folder: one process, one format, terms that are never used twice."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from crc32c import crc32c

from penstock.errors import ConfigError, CorruptLog, DataFolderInUse, StorageError, UnknownFormat
from penstock.log import DataFolder, Disk, Log
from penstock.log.os_disk import OsDisk
from penstock.sim import SimDisk
from penstock.types import NodeId, Replica
from tests.log.tools import append, config

ONE = NodeId(1)


def test_an_identity_is_created_once(disk: Disk) -> None:
    folder = DataFolder.open(disk, node_id=ONE)
    assert len(folder.cluster_id) == 22
    folder.release()
    again = DataFolder.open(disk, node_id=ONE)
    assert (again.cluster_id, again.node_id) == (folder.cluster_id, 1)
    again.release()


def test_a_folder_is_used_by_one_node_at_a_time(disk: Disk) -> None:
    folder = DataFolder.open(disk, node_id=ONE)
    with pytest.raises(DataFolderInUse, match="locked"):
        DataFolder.open(disk, node_id=ONE)
    folder.release()
    DataFolder.open(disk, node_id=ONE).release()


def test_another_process_is_locked_out(tmp_path: Path) -> None:
    folder = DataFolder.open(OsDisk(tmp_path), node_id=ONE)
    program = (
        "import sys; from penstock.log import DataFolder; from penstock.log.os_disk import OsDisk\n"
        "DataFolder.open(OsDisk(sys.argv[1]), node_id=1)"
    )
    result = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, check=False)
    assert b"DataFolderInUse" in result.stderr
    folder.release()


@pytest.mark.parametrize("content", [b"penstock 2\n", b"", b"something else", b"\xff" * 500])
def test_an_unknown_format_is_refused_and_not_changed(disk: Disk, content: bytes) -> None:
    DataFolder.open(disk, node_id=ONE).release()
    disk.write_file_atomic("meta/format", content)
    before = disk.list_dir("meta")
    with pytest.raises(UnknownFormat, match="format"):
        DataFolder.open(disk, node_id=ONE)
    assert disk.list_dir("meta") == before
    assert disk.read_file("meta/format") == content


def test_topics_without_a_format_are_refused(disk: Disk) -> None:
    disk.make_dir("topics/orders-0")
    with pytest.raises(UnknownFormat, match="topics"):
        DataFolder.open(disk, node_id=ONE)


def test_another_node_or_cluster_is_refused(disk: Disk) -> None:
    DataFolder.open(disk, node_id=ONE, cluster_id="mine").release()
    with pytest.raises(DataFolderInUse, match="node 1"):
        DataFolder.open(disk, node_id=NodeId(2))
    with pytest.raises(DataFolderInUse, match="cluster mine"):
        DataFolder.open(disk, node_id=ONE, cluster_id="other")
    DataFolder.open(disk, node_id=ONE, cluster_id="mine").release()


def test_a_damaged_identity_is_corrupt(disk: Disk) -> None:
    DataFolder.open(disk, node_id=ONE).release()
    data = bytearray(disk.read_file("meta/identity"))
    data[-1] ^= 1
    disk.write_file_atomic("meta/identity", bytes(data))
    with pytest.raises(CorruptLog, match="identity"):
        DataFolder.open(disk, node_id=ONE)


def test_a_clean_stop_is_distinguished_from_a_crash(disk: Disk) -> None:
    folder = DataFolder.open(disk, node_id=ONE)
    assert folder.was_clean
    folder.release()
    folder = DataFolder.open(disk, node_id=ONE)
    assert folder.was_clean
    folder._lock.release()
    assert not DataFolder.open(disk, node_id=ONE).was_clean


def test_leftovers_of_deleted_topics_are_removed(disk: Disk) -> None:
    folder = DataFolder.open(disk, node_id=ONE)
    log = Log.open(disk, f"{folder.topics_dir}/orders-0", config())
    append(log, b"v")
    log.destroy()
    assert disk.list_dir("topics") == ["orders-0.0.deleted"]
    folder.release()
    DataFolder.open(disk, node_id=ONE).release()
    assert disk.list_dir("topics") == []


# --- incarnation and cluster


def test_an_incarnation_is_created_with_the_folder_and_stays() -> None:
    disk = SimDisk(1)
    folder = DataFolder.open(disk, node_id=ONE)
    assert 0 < folder.incarnation < 2**63
    assert folder.founders == (Replica(ONE, folder.incarnation),)
    folder.release()
    again = DataFolder.open(disk, node_id=ONE)
    assert (again.incarnation, again.founders) == (folder.incarnation, folder.founders)
    assert DataFolder.open(SimDisk(1), node_id=ONE).incarnation != folder.incarnation


def test_the_same_random_numbers_create_the_same_folder() -> None:
    made = [DataFolder.open(SimDisk(1), node_id=ONE, draw=lambda bits: 2**bits - 1) for _ in range(2)]
    assert made[0].incarnation == made[1].incarnation == 2**63 - 1
    assert made[0].cluster_id == made[1].cluster_id


def test_a_folder_of_an_older_version_gets_an_incarnation(disk: Disk) -> None:
    DataFolder.open(disk, node_id=ONE, cluster_id="mine").release()
    body = msgspec.msgpack.encode(["mine", 1, 41])
    content = (len(body).to_bytes(2, "big") + body).ljust(508, b"\0")
    disk.write_file_atomic("meta/identity", crc32c(content).to_bytes(4, "big") + content)
    folder = DataFolder.open(disk, node_id=ONE, wait_for_cluster=True)
    assert folder.incarnation > 0
    assert folder.cluster_id == "mine"
    assert folder.founders == (Replica(ONE, folder.incarnation),)
    folder.release()
    assert DataFolder.open(disk, node_id=ONE).incarnation == folder.incarnation


def test_a_cluster_whose_flush_failed_does_not_count_for_the_next_process() -> None:
    """Otherwise the node would work in that cluster, and not know it any more after a power cut."""
    disk = SimDisk(1)
    folder = DataFolder.open(disk, node_id=ONE, wait_for_cluster=True)
    founders = [Replica(ONE, folder.incarnation)]
    disk.fail_flush("identity")
    with pytest.raises(StorageError):
        folder.found("mine", founders)
    disk.process_died()
    again = DataFolder.open(disk, node_id=ONE, wait_for_cluster=True)
    assert again.cluster_id == ""
    again.found("mine", founders)
    for seed in range(10):
        after = DataFolder.open(disk.after_power_cut(seed), node_id=ONE, wait_for_cluster=True)
        assert after.cluster_id == "mine"


def test_a_folder_without_a_cluster_gets_the_id_of_the_cluster_that_it_joins(disk: Disk) -> None:
    folder = DataFolder.open(disk, node_id=ONE, wait_for_cluster=True)
    assert (folder.cluster_id, folder.founders) == ("", ())
    folder.release()
    folder = DataFolder.open(disk, node_id=ONE, wait_for_cluster=True)
    founders = (Replica(ONE, folder.incarnation), Replica(NodeId(2), 2**63 - 1))
    folder.found("ours", founders)
    folder.found("ours", founders)
    for other, members in (("theirs", founders), ("ours", founders[:1])):
        with pytest.raises(DataFolderInUse, match="belongs to cluster ours"):
            folder.found(other, members)
    folder.release()
    for waits in (True, False):
        again = DataFolder.open(disk, node_id=ONE, wait_for_cluster=waits, cluster_id="ours")
        assert (again.cluster_id, again.founders) == ("ours", founders)
        again.release()


def test_a_folder_that_never_joined_a_cluster_can_be_used_alone(disk: Disk) -> None:
    waiting = DataFolder.open(disk, node_id=ONE, wait_for_cluster=True)
    waiting.release()
    alone = DataFolder.open(disk, node_id=ONE)
    assert (len(alone.cluster_id), alone.incarnation) == (22, waiting.incarnation)
    assert alone.founders == (Replica(ONE, alone.incarnation),)


def test_the_number_of_founders_is_limited_by_a_sector(disk: Disk) -> None:
    folder = DataFolder.open(disk, node_id=NodeId(2**31 - 1), wait_for_cluster=True)
    most = [Replica(NodeId(2**31 - 1 - number), 2**63 - 1 - number) for number in range(15)]
    for founders in ([], [*most, Replica(NodeId(1), 1)]):
        with pytest.raises(ConfigError, match="1 to 15 nodes"):
            folder.found("c" * 22, founders)
    for cluster_id in ("", "c" * 201):
        with pytest.raises(ConfigError, match="cluster_id"):
            folder.found(cluster_id, most)
    folder.found("c" * 200, most)
    assert disk.size("meta/identity") == 512
    folder.release()
    assert DataFolder.open(disk, node_id=NodeId(2**31 - 1)).founders == tuple(most)


def test_the_cluster_id_is_stored_atomically_in_a_power_cut_at_any_operation() -> None:
    disk = SimDisk(1)
    folder = DataFolder.open(disk, node_id=ONE, wait_for_cluster=True)
    founders = (Replica(ONE, folder.incarnation), Replica(NodeId(2), 5))
    survivors: list[SimDisk] = []
    disk.on_operation = lambda number, *_: survivors.append(disk.after_power_cut(number))
    folder.found("ours", founders)
    disk.on_operation = None
    for after in survivors:
        again = DataFolder.open(after, node_id=ONE, wait_for_cluster=True)
        assert (again.cluster_id, again.founders) in (("", ()), ("ours", founders))
    again = DataFolder.open(disk.after_power_cut(1), node_id=ONE, wait_for_cluster=True)
    assert (again.cluster_id, again.founders) == ("ours", founders)
