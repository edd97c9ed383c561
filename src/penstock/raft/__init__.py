"""Raft without I/O: one core per partition. core.py has the invariants."""

from penstock.raft.config import GroupConfig
from penstock.raft.core import Raft
from penstock.raft.effects import (
    AppendControl,
    AppendEntries,
    Committed,
    ConfigChanged,
    ControlKind,
    Effect,
    HardState,
    Install,
    PersistHardState,
    RaftRefusal,
    RaftRoleChanged,
    Role,
    Send,
    SendPrefix,
    StartAt,
    SuspectEntries,
    Truncate,
)
from penstock.raft.errors import BrokenPromise, RaftRefused
from penstock.raft.heartbeats import HeartbeatFrame, HeartbeatReceiver, HeartbeatReply, HeartbeatSender
from penstock.raft.messages import (
    Append,
    AppendReply,
    Heartbeat,
    InstallPrefix,
    Message,
    RequestVote,
    TimeoutNow,
    VoteReply,
)
from penstock.raft.settings import RaftSettings

__all__ = [
    "Append",
    "AppendControl",
    "AppendEntries",
    "AppendReply",
    "BrokenPromise",
    "Committed",
    "ConfigChanged",
    "ControlKind",
    "Effect",
    "GroupConfig",
    "HardState",
    "Heartbeat",
    "HeartbeatFrame",
    "HeartbeatReceiver",
    "HeartbeatReply",
    "HeartbeatSender",
    "Install",
    "InstallPrefix",
    "Message",
    "PersistHardState",
    "Raft",
    "RaftRefusal",
    "RaftRefused",
    "RaftRoleChanged",
    "RaftSettings",
    "RequestVote",
    "Role",
    "Send",
    "SendPrefix",
    "StartAt",
    "SuspectEntries",
    "TimeoutNow",
    "Truncate",
    "VoteReply",
]
