"""What the core asks of its caller, to be carried out at once, in order and before the next input.

If one of them fails, the caller carries out none of those after it: a leader is then told to `resign`, and a follower
is asked again by its leader. A log that could not be truncated must not be used any more.
"""

from enum import Enum, IntEnum

import msgspec

from penstock.batch import BatchHeader
from penstock.raft.config import GroupConfig
from penstock.raft.messages import InstallPrefix, Message
from penstock.types import NO_TERM, Replica


class HardState(msgspec.Struct, frozen=True):
    """What a replica must never forget: the highest term it knows of and whom it chose in it."""

    term: int = NO_TERM
    voted_for: Replica | None = None


class Role(Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class ControlKind(IntEnum):
    """Entries of the core's own. The values are those that stand in the log."""

    TERM_START = 0
    CONFIG = 1


class Refusal(Enum):
    """Why a leader, or who is none, does not do what it is asked."""

    NOT_LEADER = "this replica does not lead"
    TRANSFERRING = "the lead is being handed over"
    TOO_MUCH_UNCOMMITTED = "too much waits for a majority"
    TERM_NOT_CONFIRMED = "no entry of this term is committed yet"
    CHANGE_UNDER_WAY = "the group's members are being changed"
    NOT_A_VOTER = "the replica has no vote in this group"


class Send(msgspec.Struct, frozen=True):
    """One message object may go to several peers: it need be encoded only once."""

    to: Replica
    message: Message


class Persist(msgspec.Struct, frozen=True):
    """Make it durable, then send what rides on it and call `hard_state_saved`. Others may follow before it is done;
    they are saved in the order in which they were asked for."""

    hard: HardState
    then: list[Send]


class Truncate(msgspec.Struct, frozen=True):
    """Drop the log's entries from this boundary on."""

    end_index: int


class AppendEntries(msgspec.Struct, frozen=True):
    """Write a leader's entries behind the log's end as they are."""

    data: bytes
    headers: list[BatchHeader]
    """Of the entries in `data`, in order: read once, here, and checked by the log."""


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


class RoleChanged(msgspec.Struct, frozen=True):
    """Role, term or leader is not what it was."""

    role: Role
    term: int
    leader: Replica | None


class SendPrefix(msgspec.Struct, frozen=True):
    """Send `install_prefix(...)` with the log's prefix to this peer: it needs what is deleted here."""

    to: Replica


class Install(msgspec.Struct, frozen=True):
    """Durably empty the log and begin it as the prefix says."""

    message: InstallPrefix


class StartAt(msgspec.Struct, frozen=True):
    """The leader's log starts here. To be followed as far as this replica's commit goes."""

    offset: int


class Suspect(msgspec.Struct, frozen=True):
    """Leader: what the log has from this boundary on could not be read, or not be stored by a peer. To be read again,
    and compared with its checksums: it may have rotted."""

    index: int
    peer: Replica


class ConfigChanged(msgspec.Struct, frozen=True):
    """Another configuration holds, by an entry that was appended or one that was truncated."""

    config: GroupConfig | None


Effect = (
    Send
    | Persist
    | Truncate
    | AppendEntries
    | AppendControl
    | Committed
    | RoleChanged
    | SendPrefix
    | Install
    | StartAt
    | Suspect
    | ConfigChanged
)
