"""The effects: what the core asks of its caller, to be carried out at once, in order and before the next input.

If an append fails, the caller carries out none of the effects after it, and tells the core (`write_failed`, or
`entries_refused` for entries that are damaged). A follower gets the entries again from its leader. A log that could not
be truncated must not be used any more.
"""

from enum import Enum, IntEnum

import msgspec

from penstock.batch import BatchHeader
from penstock.raft.config import GroupConfig
from penstock.raft.messages import InstallPrefix, Message
from penstock.types import NO_TERM, Replica


class HardState(msgspec.Struct, frozen=True):
    """The state that must survive every crash: the highest known term, and the replica voted for in it."""

    term: int = NO_TERM
    voted_for: Replica | None = None


class Role(Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class ControlKind(IntEnum):
    """Entries that the core itself writes. The values are stored in the log."""

    TERM_START = 0
    CONFIG = 1


class RaftRefusal(Enum):
    """Why a replica does not do what it is asked."""

    NOT_LEADER = "this replica does not lead"
    TRANSFERRING = "the lead is being handed over"
    TOO_MUCH_UNCOMMITTED = "too much waits for a majority"
    TERM_NOT_CONFIRMED = "no entry of this term is committed yet"
    CHANGE_UNDER_WAY = "the group's members are being changed"
    HAS_LEADER = "the group has a leader"
    KNOWS_NOTHING = "this replica knows nothing of the group"
    NOT_A_VOTER = "the replica has no vote in this group"


class Send(msgspec.Struct, frozen=True):
    """One message object may go to several peers, so that it is encoded only once."""

    to: Replica
    message: Message


class PersistHardState(msgspec.Struct, frozen=True):
    """Make it durable, then send the messages in `then` and call `hard_state_saved`. More of these effects may come
    before it is done; they are saved in order."""

    hard: HardState
    then: list[Send]


class Truncate(msgspec.Struct, frozen=True):
    """Drop the log's entries from this boundary on."""

    end_index: int


class AppendEntries(msgspec.Struct, frozen=True):
    """Write a leader's entries behind the log's end as they are."""

    data: bytes
    headers: list[BatchHeader]
    """The headers of the entries in `data`, in order: read once, here, and checked by the log."""


class AppendControl(msgspec.Struct, frozen=True):
    """Leader: write an entry of the core's own in the current term, then call `appended` as for any other."""

    kind: ControlKind
    payload: bytes = b""


class Committed(msgspec.Struct, frozen=True):
    """Everything below `index` is decided for good. Comes whenever one of the two indexes moves."""

    index: int
    enough_index: int
    """Leader: below it, as many voters as the group requires have flushed what is committed (18). It may go back when
    the group requires more."""


class RaftRoleChanged(msgspec.Struct, frozen=True):
    """The role, the term or the known leader has changed."""

    role: Role
    term: int
    leader: Replica | None


class SendPrefix(msgspec.Struct, frozen=True):
    """Send `install_prefix(...)` with the log's prefix to this peer: it needs entries that are deleted here."""

    to: Replica


class Install(msgspec.Struct, frozen=True):
    """Durably replace the log by an empty one that starts where the prefix ends."""

    message: InstallPrefix


class StartAt(msgspec.Struct, frozen=True):
    """The leader's log starts here. Delete the prefix up to here, as far as this replica has committed."""

    offset: int


class SuspectEntries(msgspec.Struct, frozen=True):
    """Leader: the entries from this boundary on could not be read, or a peer could not store them. Read them again and
    compare the checksums: they may be damaged on this disk."""

    index: int
    peer: Replica


class ConfigChanged(msgspec.Struct, frozen=True):
    """Another configuration holds, because its entry was appended or a newer one was truncated."""

    config: GroupConfig | None


Effect = (
    Send
    | PersistHardState
    | Truncate
    | AppendEntries
    | AppendControl
    | Committed
    | RaftRoleChanged
    | SendPrefix
    | Install
    | StartAt
    | SuspectEntries
    | ConfigChanged
)
