"""Deleted files and changed bytes, under load: the intact replicas repair the others."""

import shutil
from pathlib import Path

from tests.faults.checks import assert_kept
from tests.faults.clients import create_topic, leader_of, wait_in_sync
from tests.faults.load import Load
from tests.faults.nodes import Cluster, Node

TOPIC = "payments"
SOME = 200
SEGMENT_BYTES = "20000"
ROTTEN_BYTE = 150
"""Within the first batch of records: a log begins with a control entry of 74 bytes, and a batch with 61 of its own."""


def segments(node: Node) -> list[Path]:
    return sorted((node.data_dir / "topics" / f"{TOPIC}-0").glob("*.log"))


def flip(path: Path) -> None:
    """In place, as a disk does: the node has the file open."""
    with path.open("r+b") as file:
        file.seek(ROTTEN_BYTE)
        [byte] = file.read(1)
        file.seek(ROTTEN_BYTE)
        file.write(bytes([byte ^ 1]))


def test_refilling_a_lost_folder_detects_and_repairs_damage_on_the_leader(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        create_topic(cluster, TOPIC, internal_segment_bytes=SEGMENT_BYTES)
        with Load(cluster, TOPIC) as load:
            while len(segments(cluster[leader_of(cluster, TOPIC)])) < 4:
                load.wait_for_more(SOME)
            victim = cluster[leader_of(cluster, TOPIC) % 3 + 1]
            victim.kill()
            shutil.rmtree(victim.data_dir / "topics" / f"{TOPIC}-0")
            leader = cluster[leader_of(cluster, TOPIC, other_than=victim.node_id)]
            rotten = segments(leader)[1]
            flip(rotten)
            load.wait_for_more(SOME)
            victim.start()
            victim.wait_said("payments-0", "is missing or empty", within_this_process=True)
            leader.wait_said("payments-0 is damaged", rotten.name)
            leader.wait_said("payments-0 is rebuilt")
            wait_in_sync(cluster, TOPIC)
            load.wait_for_more(SOME)
        assert_kept(cluster, load)
        for node in (victim, leader):
            assert sum("cannot be stored" in line for line in node.lines) <= 1
        assert list((leader.data_dir / "orphans").glob(f"{TOPIC}-0.*")), "the damaged bytes are kept"
