"""Opens the files of votes, and refuses to start a node that has lost them.

The votes also record which logs this node has (`SavedVote.has_log`). So a node without them has forgotten two promises:
which candidates it voted for, and which entries it acknowledged. If a log and the votes are lost together, the node
could help to elect a replica that lacks acknowledged records, and no error would show it. So only two kinds of folder
may lack them:

1. A new folder. The votes are created before the folder gets its cluster, and before gossip writes anything: a folder
   with a cluster or a gossip file had votes.
2. The folder of a node that was always alone, from a version before votes were stored. It has no other replica to
   elect, and all logs in the folder count as its own.
"""

from penstock.errors import CorruptLog, PromisesLost
from penstock.log import DataFolder
from penstock.log.data_folder import GOSSIP_PATH, VOTES_PATH
from penstock.log.disk import Disk
from penstock.log.votes import VoteStore
from penstock.types import Replica


def open_votes(disk: Disk, folder: DataFolder, shown_path: str) -> tuple[VoteStore, bool]:
    """The votes, and whether the folder is from a version before votes. Raises PromisesLost for a node of a cluster
    that has lost them; messages name the folder as `shown_path`."""
    was_in_cluster = _was_in_cluster(disk, folder)
    missing = [name for name in (f"{VOTES_PATH}.0", f"{VOTES_PATH}.1") if not disk.exists(name)]
    if missing and was_in_cluster:
        raise _lost(f"gone: {' and '.join(missing)} in {shown_path}", shown_path)
    is_older = f"{VOTES_PATH}.0" in missing and bool(disk.list_dir(folder.topics_dir))
    try:
        return VoteStore(disk, VOTES_PATH), is_older
    except CorruptLog as rot:
        if was_in_cluster:
            raise _lost(f"damaged: {rot}", shown_path) from rot
        raise


def _was_in_cluster(disk: Disk, folder: DataFolder) -> bool:
    """A node that founded its cluster alone has only itself as founder, even if others joined later. But then it has a
    gossip file."""
    alone = (Replica(folder.node_id, folder.incarnation),)
    return folder.founders not in ((), alone) or disk.exists(GOSSIP_PATH)


def _lost(how: str, shown_path: str) -> PromisesLost:
    return PromisesLost(f"the votes of this node are {how}", how_to_replace(shown_path))


def how_to_replace(shown_path: str) -> str:
    """Advice for a node of a cluster that has lost its votes or metadata. The whole folder must be emptied: otherwise
    the node would use the rest of it under its old identity."""
    return (
        "if the disk could not be read for a moment only, start the node again when it can; otherwise "
        f"empty the folder {shown_path} (keep a copy of its files until the cluster is healthy) and start the node "
        "with the same id; its data is copied from the other nodes"
    )
