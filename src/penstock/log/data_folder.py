"""A node's data folder: whose it is, in which format, and who is using it.

DATA/
  lock             held with flock while a node runs
  meta/format      "penstock 1\n": the version of everything below. Refused when it is another.
  meta/identity    MessagePack array (Identity) behind a CRC-32C of 4 bytes, big-endian: cluster, node, terms
  used up
  meta/clean       there is one if the last node that ran here stopped in good order
  topics/          one folder per partition (layout.py)
  topics/*.deleted partitions on their way out: removed on sight

The format is checked before anything is written: a folder of a newer Penstock is left as it was.
"""

import secrets
from base64 import urlsafe_b64encode
from contextlib import suppress
from typing import Self

import msgspec
from crc32c import crc32c

from penstock.errors import CorruptLog, DataFolderInUse, StorageError, UnknownFormat
from penstock.log.disk import SECTOR_SIZE, Disk, Lock
from penstock.log.layout import DELETED_SUFFIX
from penstock.types import NodeId, Term

FORMAT = b"penstock 1\n"
LOCK = "lock"
META = "meta"
FORMAT_PATH = "meta/format"
IDENTITY_PATH = "meta/identity"
CLEAN_PATH = "meta/clean"
TOPICS = "topics"

CRC_SIZE = 4
LENGTH_SIZE = 2


class Identity(msgspec.Struct, array_like=True, kw_only=True):
    """Who this folder belongs to."""

    cluster_id: str
    node_id: int
    last_term: int = -1
    """The greatest term handed out. A term is never used twice, whatever happened to the one who had it."""


class DataFolder:
    """An open, locked data folder."""

    topics_dir = TOPICS

    def __init__(self, disk: Disk, lock: Lock, identity: Identity, *, was_clean: bool) -> None:
        self._disk = disk
        self._lock = lock
        self._identity = identity
        self.was_clean = was_clean
        """Whether the last run stopped in good order. Only to be told to people: every log checks itself."""

    @classmethod
    def open(cls, disk: Disk, *, node_id: NodeId, cluster_id: str | None = None) -> Self:
        """Locks the folder, or makes it. Raises DataFolderInUse or UnknownFormat."""
        disk.make_dir(META)
        lock = disk.lock(LOCK)
        try:
            fresh = _check_format(disk)
            identity = (
                _make_identity(disk, node_id, cluster_id)
                if fresh
                else _load_identity(disk, node_id, cluster_id)
            )
            if fresh:
                # Last: until it is there, a half-made folder is made anew.
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
        return self._identity.cluster_id

    @property
    def node_id(self) -> NodeId:
        return NodeId(self._identity.node_id)

    def next_term(self) -> Term:
        """A term that was never used here before; on the disk when this returns."""
        self._identity.last_term += 1
        _save_identity(self._disk, self._identity)
        return Term(self._identity.last_term)

    def release(self) -> None:
        """All logs are closed: marks the folder as clean and lets go of it."""
        try:
            with suppress(StorageError):  # told to people only, so it is not worth an error
                self._disk.write_file_atomic(CLEAN_PATH, b"")
        finally:
            self._lock.release()


def _check_format(disk: Disk) -> bool:
    """True for a folder that is new. A folder with topics and no format is not ours to write into."""
    try:
        found = disk.read_file(FORMAT_PATH)
    except FileNotFoundError:
        if disk.list_dir(TOPICS):
            raise UnknownFormat(f"there are topics, but no {FORMAT_PATH} that tells their format") from None
        disk.make_dir(TOPICS)
        disk.sync_dir("")
        return True
    if found != FORMAT:
        shown = found[:40].decode("utf-8", "replace").strip()
        raise UnknownFormat(
            f"the data folder has format {shown!r} and this Penstock knows {FORMAT.decode().strip()!r} only: "
            "use the version that wrote it, or another folder"
        )
    return False


def _make_identity(disk: Disk, node_id: NodeId, cluster_id: str | None) -> Identity:
    new_cluster_id = urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()
    identity = Identity(cluster_id=cluster_id or new_cluster_id, node_id=node_id)
    _save_identity(disk, identity)
    return identity


def _load_identity(disk: Disk, node_id: NodeId, cluster_id: str | None) -> Identity:
    try:
        data = disk.read_file(IDENTITY_PATH)
    except FileNotFoundError:
        raise CorruptLog(IDENTITY_PATH, 0, "the node's identity is missing") from None
    if int.from_bytes(data[:CRC_SIZE], "big") != crc32c(data[CRC_SIZE:]):
        raise CorruptLog(IDENTITY_PATH, 0, "the node's identity does not have its checksum")
    start = CRC_SIZE + LENGTH_SIZE
    length = int.from_bytes(data[CRC_SIZE:start], "big")
    identity = msgspec.msgpack.decode(data[start : start + length], type=Identity)
    if identity.node_id != node_id:
        raise DataFolderInUse(f"the data folder belongs to node {identity.node_id}, not to node {node_id}")
    if cluster_id is not None and identity.cluster_id != cluster_id:
        raise DataFolderInUse(
            f"the data folder belongs to cluster {identity.cluster_id}, not to {cluster_id}"
        )
    return identity


def _save_identity(disk: Disk, identity: Identity) -> None:
    """Overwrites in place: one sector changes whole or not at all, and a node must be able to start on a full disk, or
    it could never make room on it."""
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
