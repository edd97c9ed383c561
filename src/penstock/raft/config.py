"""The members of a group, and what a majority is.

A configuration has *voters* and, during a change, the *outgoing* voters too: then it is *joint*, and every decision
needs a majority of each half. So the old and the new voters can never decide independently, and any set of voters may
follow any other. *Learners* receive all entries and decide nothing; in a joint configuration they are those of the
configuration that follows it, so that any leader can complete the change from the log alone.

On the wire and in the log it is a MessagePack array [version, voters, outgoing, learners] of [node, incarnation].
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from penstock.errors import ProtocolViolation
from penstock.raft.settings import MAX_REPLICAS
from penstock.types import Replica

FORMAT_VERSION = 1
MAX_CONFIG_BYTES = 8192
"""Three lists of MAX_REPLICAS replicas, each of at most 1 + 9 + 9 bytes, come to less than half of this."""

Value = TypeVar("Value", int, float)


class GroupConfig(msgspec.Struct, frozen=True, array_like=True):
    """The members of a group. Tuples keep their order: the first voter leads a new group first."""

    voters: tuple[Replica, ...]
    outgoing: tuple[Replica, ...] = ()
    learners: tuple[Replica, ...] = ()

    @property
    def joint(self) -> bool:
        return bool(self.outgoing)

    @property
    def halves(self) -> tuple[tuple[Replica, ...], ...]:
        """The sets of voters of which each must agree."""
        return (self.voters, self.outgoing) if self.outgoing else (self.voters,)

    @property
    def members(self) -> tuple[Replica, ...]:
        """All replicas, each once, voters first."""
        return tuple(dict.fromkeys(self.voters + self.outgoing + self.learners))

    def votes(self, replica: Replica) -> bool:
        return replica in self.voters or replica in self.outgoing

    def is_quorum(self, replicas: Iterable[Replica]) -> bool:
        present = frozenset(replicas)
        return all(sum(voter in present for voter in half) * 2 > len(half) for half in self.halves)

    def validate(self) -> None:
        """Raises ProtocolViolation. A node may have one replica in each list, and not two incarnations."""
        if not self.voters:
            raise ProtocolViolation("a group configuration without voters")
        for name, replicas in zip(("voters", "outgoing", "learners"), self._lists(), strict=True):
            if len(replicas) > MAX_REPLICAS:
                raise ProtocolViolation(f"{len(replicas)} {name}: expected at most {MAX_REPLICAS}")
            if len({replica.node for replica in replicas}) != len(replicas):
                raise ProtocolViolation(f"{name} {_names(replicas)}: expected each node once")
        if any(learner in self.voters for learner in self.learners):
            raise ProtocolViolation(f"learners {_names(self.learners)}: expected none of the voters")

    def _lists(self) -> Iterator[tuple[Replica, ...]]:
        yield self.voters
        yield self.outgoing
        yield self.learners


def majority_value(values: list[Value]) -> Value:
    """The greatest value that more than half of them have reached."""
    values.sort()
    return values[(len(values) - 1) // 2]


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    version: int
    voters: tuple[Replica, ...]
    outgoing: tuple[Replica, ...]
    learners: tuple[Replica, ...]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Stored)


def encode(config: GroupConfig) -> bytes:
    stored = _Stored(FORMAT_VERSION, config.voters, config.outgoing, config.learners)
    return _encoder.encode(stored)


def decode(payload: bytes | memoryview) -> GroupConfig:
    """Raises ProtocolViolation for bytes that `encode` cannot have written."""
    if len(payload) > MAX_CONFIG_BYTES:
        raise ProtocolViolation(f"a group configuration of {len(payload)} bytes: at most {MAX_CONFIG_BYTES}")
    try:
        stored = _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise ProtocolViolation(f"a group configuration that does not parse: {problem}") from problem
    if stored.version != FORMAT_VERSION:
        raise ProtocolViolation(f"group configuration version {stored.version}: expected {FORMAT_VERSION}")
    config = GroupConfig(stored.voters, stored.outgoing, stored.learners)
    config.validate()
    return config


class ConfigHistory:
    """The configurations in a log, each with the end index of its entry, in ascending order.

    The newest holds, committed or not (invariant 14). Older ones are kept because a truncation brings them back, and
    the one that held where the log begins because it is part of the prefix that followers may need.
    """

    def __init__(self, founding: GroupConfig | None, entries: Sequence[tuple[int, GroupConfig]] = ()) -> None:
        self._entries: list[tuple[int, GroupConfig]] = [] if founding is None else [(0, founding)]
        self._entries.extend(entries)
        indexes = [index for index, _ in self._entries]
        if indexes != sorted(indexes):
            raise ValueError(f"configurations at {indexes}: expected rising indexes")

    @property
    def newest(self) -> GroupConfig | None:
        return self._entries[-1][1] if self._entries else None

    @property
    def newest_index(self) -> int:
        """Where the entry of the newest ends; 0 for a founding configuration, which is in no log."""
        return self._entries[-1][0] if self._entries else 0

    @property
    def previous(self) -> GroupConfig | None:
        """The configuration before the newest."""
        return self._entries[-2][1] if len(self._entries) > 1 else None

    def may_campaign(self, replica: Replica, commit_index: int) -> bool:
        """Invariant 15: a voter, also of the configuration before the newest if that may not be committed."""
        newest, previous = self.newest, self.previous
        if newest is None or newest.votes(replica):
            return newest is not None
        return self.newest_index > commit_index and previous is not None and previous.votes(replica)

    @property
    def is_joint(self) -> bool:
        newest = self.newest
        return newest is not None and newest.joint

    def voters(self) -> list[Replica]:
        """The voters of both halves of the newest configuration, each once."""
        newest = self.newest
        return [] if newest is None else list(dict.fromkeys(newest.voters + newest.outgoing))

    def is_quorum(self, replicas: list[Replica]) -> bool:
        newest = self.newest
        return newest is not None and newest.is_quorum(replicas)

    def is_member(self, replica: Replica) -> bool:
        newest = self.newest
        return newest is not None and replica in newest.members

    def at(self, index: int) -> GroupConfig | None:
        """The configuration that held at this index."""
        held = None
        for begin, config in self._entries:
            if begin > index:
                break
            held = config
        return held

    @property
    def oldest(self) -> GroupConfig | None:
        return self._entries[0][1] if self._entries else None

    def add(self, index: int, config: GroupConfig) -> None:
        self._entries.append((index, config))

    def truncate(self, end_index: int) -> bool:
        """Drops the configurations above this index. True if another one holds now."""
        count = len(self._entries)
        while self._entries and self._entries[-1][0] > end_index:
            self._entries.pop()
        return len(self._entries) != count

    def delete_prefix(self, first_index: int) -> None:
        while len(self._entries) > 1 and self._entries[1][0] <= first_index:
            del self._entries[0]

    def reset(self, first_index: int, config: GroupConfig) -> None:
        self._entries = [(first_index, config)]


def _names(replicas: tuple[Replica, ...]) -> str:
    return ", ".join(f"{replica.node}/{replica.incarnation}" for replica in replicas)
