"""The node's data folder: one user, one format, terms that are never used twice."""

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import CorruptLog, DataFolderInUse, UnknownFormat
from penstock.log import DataFolder, Disk, Log, OsDisk
from penstock.sim import SimDisk
from penstock.types import NodeId
from tests.log.tools import append, config

ONE = NodeId(1)


def test_an_identity_is_made_once(disk: Disk) -> None:
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
        "import sys; from penstock.log import DataFolder, OsDisk\n"
        "DataFolder.open(OsDisk(sys.argv[1]), node_id=1)"
    )
    result = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, check=False)
    assert b"DataFolderInUse" in result.stderr
    folder.release()


@pytest.mark.parametrize("content", [b"penstock 2\n", b"", b"something else", b"\xff" * 500])
def test_an_unknown_format_is_refused_and_left_alone(disk: Disk, content: bytes) -> None:
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


def test_a_rotten_identity_is_corrupt(disk: Disk) -> None:
    DataFolder.open(disk, node_id=ONE).release()
    data = bytearray(disk.read_file("meta/identity"))
    data[-1] ^= 1
    disk.write_file_atomic("meta/identity", bytes(data))
    with pytest.raises(CorruptLog, match="identity"):
        DataFolder.open(disk, node_id=ONE)


def test_a_clean_stop_is_told_from_a_crash(disk: Disk) -> None:
    folder = DataFolder.open(disk, node_id=ONE)
    assert folder.was_clean
    folder.release()
    folder = DataFolder.open(disk, node_id=ONE)
    assert folder.was_clean
    folder._lock.release()
    assert not DataFolder.open(disk, node_id=ONE).was_clean


def test_a_term_is_never_used_twice_wherever_the_power_is_cut() -> None:
    disk = SimDisk(1)
    used: list[int] = []
    survivors: list[tuple[int, SimDisk]] = []
    disk.on_operation = lambda number, *_: survivors.extend(
        (len(used), disk.after_power_cut(s)) for s in range(3)
    )
    folder = DataFolder.open(disk, node_id=ONE)
    while len(used) < 4:
        used.append(folder.next_term())
    folder.release()
    assert used == sorted(set(used))
    assert len(survivors) > 60
    for count, after in survivors:
        again = DataFolder.open(after, node_id=ONE)
        assert again.next_term() not in used[:count]


def test_leftovers_of_deleted_topics_are_removed(disk: Disk) -> None:
    folder = DataFolder.open(disk, node_id=ONE)
    log = Log.open(disk, f"{folder.topics_dir}/orders-0", config())
    append(log, b"v")
    log.destroy()
    assert disk.list_dir("topics") == ["orders-0.0.deleted"]
    folder.release()
    DataFolder.open(disk, node_id=ONE).release()
    assert disk.list_dir("topics") == []
