"""Which files of votes a node may start with.

The votes also tell which logs were here (`SavedVote.has_log`), so a node without them has forgotten two promises: whom
it elected, and what it acknowledged. With both a log and the votes gone, it would help to elect somebody who has less
than was acked, and nobody would notice. So only two folders may lack them:

1. One that is new. The votes are made before a folder is told its cluster, and before gossip writes anything: whoever
   has the one had the other.
2. One of a node that was always alone and is older than votes are. There is nobody to elect, and all logs in it are
   taken for known.
"""

from penstock.errors import CorruptLog, PromisesLost
from penstock.log import DataFolder
from penstock.log.data_folder import GOSSIP_PATH, VOTES_PATH
from penstock.log.disk import Disk
from penstock.log.votes import VoteStore
from penstock.types import Replica


def open_votes(disk: Disk, folder: DataFolder, shown_path: str) -> tuple[VoteStore, bool]:
    """The votes, and whether the folder is older than they are. PromisesLost for a node of a cluster that has lost
    them; `shown_path` is where people find the folder."""
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
    """A node that others joined has founded its cluster as one that is alone does; but it has gossiped."""
    alone = (Replica(folder.node_id, folder.incarnation),)
    return folder.founders not in ((), alone) or disk.exists(GOSSIP_PATH)


def _lost(how: str, shown_path: str) -> PromisesLost:
    return PromisesLost(f"the votes of this node are {how}", begin_anew(shown_path))


def begin_anew(shown_path: str) -> str:
    """What to do with a node of a cluster that no longer knows what it promised. Nothing less than the whole folder
    will do: the rest of it would be used under the old identity."""
    return (
        f"empty the folder {shown_path} (keep what was in it until all is well) and start it with the same id; "
        "its data is copied from the others"
    )
