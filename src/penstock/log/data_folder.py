"""A node's data folder: which node and cluster own it, its format, and its lock.

DATA/
  lock             held with flock while a node runs
  meta/format      "penstock 1\n": the version of everything below. Refused when it is another.
  meta/identity    one sector: a CRC-32C of 4 bytes and a length of 2, big-endian, then a MessagePack array (Identity):
                   cluster, node, terms used up, incarnation, founders; then zeros
  meta/votes.*     terms and votes of all Raft groups (votes.py)
  meta/gossip      the durable state of gossip (node/membership/gossip.py); only nodes that have had an inter-node port
                   have it
  meta/clean       exists if the last node that ran here stopped cleanly
  topics/          one folder per partition (layout.py)
  topics/*.deleted deleted partitions: opening removes them

The format is checked before anything is written: a folder of a newer Penstock stays unchanged.

A folder belongs to a cluster from the moment that this cluster is founded or joined, for good. A node that runs alone
founds its own at once; a node that must find others first (`wait_for_cluster`) has no cluster until `found`.
"""

import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Self

import msgspec

from penstock.batch.checksum import crc32c
from penstock.errors import ConfigError, CorruptLog, DataFolderInUse, StorageError, UnknownFormat
from penstock.log.disk import SECTOR_SIZE, Disk, Lock, read_uncached
from penstock.log.layout import DELETED_SUFFIX
from penstock.types import NodeId, Replica

FORMAT = b"penstock 1\n"
LOCK = "lock"
META = "meta"
FORMAT_PATH = "meta/format"
IDENTITY_PATH = "meta/identity"
CLEAN_PATH = "meta/clean"
VOTES_PATH = "meta/votes"
GOSSIP_PATH = "meta/gossip"
TOPICS = "topics"

CRC_SIZE = 4
LENGTH_SIZE = 2
MAX_FOUNDERS = 15
"""They must fit into the sector, 15 bytes each. Far more than a quorum needs; later nodes join."""
MAX_CLUSTER_ID_BYTES = 200

Draw = Callable[[int], int]
"""A random number of that many bits."""


class Identity(msgspec.Struct, array_like=True, kw_only=True):
    """The owner of this folder."""

    cluster_id: str
    """"": not known yet."""
    node_id: int
    last_term: int = -1
    """Of the versions before clusters, which issued terms here. Kept for the order of the fields."""
    incarnation: int = 0
    """Created with the folder, 63 random bits: a node that has lost its folder comes back as another replica. 0: the
    folder is from a version before incarnations."""
    founders: list[tuple[int, int]] = []
    """Node id and incarnation of the nodes that founded the cluster; empty: not known yet."""


class DataFolder:
    """An open, locked data folder."""

    topics_dir = TOPICS

    def __init__(self, disk: Disk, lock: Lock, identity: Identity, *, was_clean: bool) -> None:
        self._disk = disk
        self._lock = lock
        self._identity = identity
        self.was_clean = was_clean
        """Whether the last run stopped cleanly. Only for the operator: every log checks itself."""

    @classmethod
    def open(
        cls,
        disk: Disk,
        *,
        node_id: NodeId,
        cluster_id: str | None = None,
        wait_for_cluster: bool = False,
        draw: Draw = secrets.randbits,
    ) -> Self:
        """Locks the folder, and creates it if needed. Raises DataFolderInUse or UnknownFormat.

        A folder without a cluster gets one of its own, named `cluster_id` if that is given; with `wait_for_cluster` it
        has none until `found`.
        """
        disk.make_dir(META)
        lock = disk.lock(LOCK)
        try:
            fresh = _check_format(disk)
            identity = (
                Identity(cluster_id="", node_id=node_id)
                if fresh
                else _load_identity(disk, node_id, cluster_id)
            )
            if _complete(identity, cluster_id, wait_for_cluster, draw) or fresh:
                _save_identity(disk, identity)
            if fresh:
                # Last: without it, the next start creates the folder again.
                disk.write_file_atomic(FORMAT_PATH, FORMAT)
            was_clean = fresh or disk.exists(CLEAN_PATH)
            disk.remove(CLEAN_PATH)
            disk.sync_dir(META)
            _remove_deleted(disk)
        except BaseException:
            lock.release()
            raise
        return cls(disk, lock, identity, was_clean=was_clean)

    @property
    def cluster_id(self) -> str:
        """ "": this node has not found its cluster yet."""
        return self._identity.cluster_id

    @property
    def node_id(self) -> NodeId:
        return NodeId(self._identity.node_id)

    @property
    def incarnation(self) -> int:
        return self._identity.incarnation

    @property
    def founders(self) -> tuple[Replica, ...]:
        """The nodes that founded the cluster; empty while they are not known."""
        return tuple(Replica(NodeId(node), incarnation) for node, incarnation in self._identity.founders)

    def found(self, cluster_id: str, founders: Sequence[Replica]) -> None:
        """This folder belongs to that cluster from now on; on the disk when this returns. A second call must name the
        same cluster and founders."""
        _check_founding(cluster_id, founders)
        identity = self._identity
        pairs = [(int(founder.node), founder.incarnation) for founder in founders]
        if identity.cluster_id and (identity.cluster_id, identity.founders) != (cluster_id, pairs):
            raise DataFolderInUse(
                f"the data folder belongs to cluster {identity.cluster_id}, not to {cluster_id} founded by {pairs}"
            )
        if not identity.cluster_id:
            changed = msgspec.structs.replace(identity, cluster_id=cluster_id, founders=pairs)
            _save_identity(self._disk, changed)
            self._identity = changed

    def release(self) -> None:
        """All logs are closed: marks the folder as clean and releases the lock."""
        try:
            with suppress(StorageError):  # only for the operator, so it is not worth an error
                self._disk.write_file_atomic(CLEAN_PATH, b"")
        finally:
            self._lock.release()
            self._disk.close()


def _check_format(disk: Disk) -> bool:
    """True for a new folder. Penstock does not write into a folder that has topics and no format."""
    try:
        found = disk.read_file(FORMAT_PATH)
    except FileNotFoundError:
        if disk.list_dir(TOPICS):
            raise UnknownFormat(f"there are topics, but no {FORMAT_PATH} with their format") from None
        disk.make_dir(TOPICS)
        disk.sync_dir("")
        return True
    if found != FORMAT:
        shown = found[:40].decode("utf-8", "replace").strip()
        raise UnknownFormat(
            f"the data folder has format {shown!r}, and this Penstock knows only {FORMAT.decode().strip()!r}: "
            "use the version that wrote it, or another folder"
        )
    return False


def _complete(identity: Identity, cluster_id: str | None, wait_for_cluster: bool, draw: Draw) -> bool:
    """Fills in the missing fields of the identity; returns whether any was missing."""
    changed = False
    if identity.incarnation == 0:
        identity.incarnation = draw(63) or 1
        changed = True
    if not identity.cluster_id and not wait_for_cluster:
        new_cluster_id = urlsafe_b64encode(draw(128).to_bytes(16, "big")).rstrip(b"=").decode()
        identity.cluster_id = cluster_id or new_cluster_id
        changed = True
    if identity.cluster_id and not identity.founders:
        # It founded its own cluster, now or in a version that did not record founders.
        identity.founders = [(identity.node_id, identity.incarnation)]
        changed = True
    return changed


def _check_founding(cluster_id: str, founders: Sequence[Replica]) -> None:
    if not 1 <= len(founders) <= MAX_FOUNDERS:
        raise ConfigError("founders", len(founders), f"1 to {MAX_FOUNDERS} nodes; others join later")
    if not 1 <= len(cluster_id.encode()) <= MAX_CLUSTER_ID_BYTES:
        raise ConfigError("cluster_id", cluster_id, f"1 to {MAX_CLUSTER_ID_BYTES} bytes")


def _load_identity(disk: Disk, node_id: NodeId, cluster_id: str | None) -> Identity:
    try:
        data = read_uncached(disk, IDENTITY_PATH)
    except FileNotFoundError:
        raise CorruptLog(IDENTITY_PATH, 0, "the node's identity is missing") from None
    if int.from_bytes(data[:CRC_SIZE], "big") != crc32c(data[CRC_SIZE:]):
        raise CorruptLog(IDENTITY_PATH, 0, "the checksum of the node's identity is wrong")
    start = CRC_SIZE + LENGTH_SIZE
    length = int.from_bytes(data[CRC_SIZE:start], "big")
    identity = msgspec.msgpack.decode(data[start : start + length], type=Identity)
    if identity.node_id != node_id:
        raise DataFolderInUse(f"the data folder belongs to node {identity.node_id}, not to node {node_id}")
    if cluster_id is not None and identity.cluster_id not in ("", cluster_id):
        raise DataFolderInUse(
            f"the data folder belongs to cluster {identity.cluster_id}, not to {cluster_id}"
        )
    return identity


def _save_identity(disk: Disk, identity: Identity) -> None:
    """Overwrites in place: one sector is written completely or not at all. And a node must be able to start on a full
    disk, or it could never free space on it."""
    body = msgspec.msgpack.encode(identity)
    content = (len(body).to_bytes(LENGTH_SIZE, "big") + body).ljust(SECTOR_SIZE - CRC_SIZE, b"\0")
    data = crc32c(content).to_bytes(CRC_SIZE, "big") + content
    if len(data) != SECTOR_SIZE or not disk.exists(IDENTITY_PATH):
        disk.write_file_atomic(IDENTITY_PATH, data)
        return
    file = disk.open(IDENTITY_PATH)
    try:
        file.write_at(0, data)
        file.flush()
    finally:
        file.close()


def _remove_deleted(disk: Disk) -> None:
    for name in disk.list_dir(TOPICS):
        if name.endswith(DELETED_SUFFIX):
            with suppress(FileNotFoundError):
                disk.remove_tree(f"{TOPICS}/{name}")
