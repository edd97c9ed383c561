"""Messages between replicas and control entries in the log round-trip, and all other bytes are refused."""

import msgspec
import pytest

from penstock.errors import ConfigError, ProtocolViolation
from penstock.log.layout import CALLERS_OWN, CONTROL_HEAD, TERM_START
from penstock.raft import (
    Append,
    AppendReply,
    ControlKind,
    GroupConfig,
    InstallPrefix,
    RaftSettings,
    RequestVote,
    TimeoutNow,
    VoteReply,
)
from penstock.raft import config as configs
from penstock.raft.config import majority_value
from penstock.raft.entries import CONTROL_HEAD_SIZE, Entries
from penstock.raft.messages import decode, encode
from tests.raft.machine import replica
from tests.raft.toy_log import ToyLog

CONFIG = GroupConfig((replica(1), replica(2)), (replica(2), replica(3)), (replica(4),))


@pytest.mark.parametrize(
    "message",
    [
        RequestVote(3, 10, 2, pre=True),
        RequestVote(0, 0, -1, pre=False, transfer=True),
        VoteReply(3, granted=True, pre=False),
        Append(3, 10, 2, 12, 9, 4, b"entries"),
        AppendReply(3, 10, 12),
        AppendReply(3, 0, 0, 10, 5, 1),
        InstallPrefix(3, 10, 2, CONFIG, b"prefix"),
        TimeoutNow(3),
    ],
)
def test_a_message_arrives_as_it_was_sent(message: msgspec.Struct) -> None:
    assert decode(encode(message)) == message
    assert decode(memoryview(encode(message))) == message


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"garbage",
        encode(TimeoutNow(3))[:-1],
        msgspec.msgpack.encode([99, 1]),
        msgspec.msgpack.encode([5, "one"]),
        msgspec.msgpack.encode([5, 2**31]),
        msgspec.msgpack.encode([5, -2]),
        msgspec.msgpack.encode([2, 1, -1, 0, 0, 0, 0, b""]),
        msgspec.msgpack.encode([2, 1, 5, 0, 4, 0, 0, b""]),
        encode(InstallPrefix(3, 10, 2, GroupConfig(()), b"")),
    ],
)
def test_bytes_that_are_no_message_are_the_peers_fault(body: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        decode(body)


def test_control_entries_are_numbered_as_the_log_numbers_them() -> None:
    assert (ControlKind.TERM_START, ControlKind.CONFIG) == (TERM_START, CALLERS_OWN)
    assert CONTROL_HEAD.size == CONTROL_HEAD_SIZE


# ---- entries


def filled_log() -> ToyLog:
    """Two terms: a start, batches of 3 and 2; a start, a configuration, a batch of 1. Ends: 1 4 6 7 8 9."""
    log = ToyLog()
    log.append(3, 0)
    log.append(2, 0)
    log.begin_term(4)
    log.append_config(configs.encode(CONFIG), 4)
    log.append(1, 4)
    return log


def append(log: ToyLog, prev_index: int, term: int = 4) -> Append:
    data, end_index = log.read_entries(prev_index, 10_000)
    prev_term = log.term_before(prev_index)
    assert prev_term is not None
    return Append(term, prev_index, prev_term, end_index, 0, 0, data)


def test_boundaries_follow_from_the_entries_and_where_they_end() -> None:
    entries = Entries(append(filled_log(), 0))
    assert entries.ends == [1, 4, 6, 7, 8, 9]
    assert entries.terms == [0, 0, 0, 4, 4, 4]
    assert entries.configs == [(8, CONFIG)]
    assert Entries(append(filled_log(), 4)).ends == [6, 7, 8, 9]


def test_boundaries_are_right_where_compaction_left_a_gap() -> None:
    """The batch at 4..6 is gone, so the first entry does not follow prev_index."""
    message = append(filled_log(), 6)
    assert Entries(msgspec.structs.replace(message, prev_index=4)).ends == [7, 8, 9]


@pytest.mark.parametrize(
    "change",
    [
        {"entries": b"x" * 70},
        {"end_index": 8},
        {"prev_index": 7},
        {"prev_term": 2},
        {"term": 3},
        {"entries": b""},
    ],
)
def test_entries_that_do_not_fit_are_refused(change: dict[str, object]) -> None:
    message = append(filled_log(), 4)
    with pytest.raises(ProtocolViolation):
        Entries(msgspec.structs.replace(message, **change))


def test_entries_cut_at_any_byte_are_refused() -> None:
    message = append(filled_log(), 0)
    whole = [len(entry.data) for entry in filled_log().entries]
    boundaries = [sum(whole[:count]) for count in range(len(whole))]
    for size in range(1, len(message.entries)):
        if size not in boundaries:
            with pytest.raises(ProtocolViolation):
                Entries(msgspec.structs.replace(message, entries=message.entries[:size]))


# ---- configurations


def test_a_configuration_is_read_as_it_was_written() -> None:
    assert configs.decode(configs.encode(CONFIG)) == CONFIG
    largest = tuple(replica(node, 2**63 - 1) for node in range(2**31 - 65, 2**31 - 1))
    members = GroupConfig(largest, largest, ())
    assert configs.decode(configs.encode(members)) == members


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([2, [[1, 1]], [], []]),
        msgspec.msgpack.encode([1, [], [], []]),
        msgspec.msgpack.encode([1, [[1, 1], [1, 2]], [], []]),
        msgspec.msgpack.encode([1, [[1, 1]], [], [[1, 1]]]),
        msgspec.msgpack.encode([1, [[node, 1] for node in range(65)], [], []]),
        bytes(9000),
    ],
)
def test_an_invalid_configuration_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        configs.decode(payload)


@pytest.mark.parametrize(
    ("values", "agreed"), [([7], 7), ([3, 9], 3), ([3, 9, 5], 5), ([1, 2, 3, 4], 2), ([5, 1, 4, 2, 3], 3)]
)
def test_a_majority_has_reached_the_median(values: list[int], agreed: int) -> None:
    assert majority_value(values) == agreed


def test_a_joint_quorum_is_one_of_each_half() -> None:
    config = GroupConfig((replica(1), replica(4), replica(5)), (replica(1), replica(2), replica(3)))
    assert not config.is_quorum([replica(1), replica(2), replica(3)])
    assert not config.is_quorum([replica(1), replica(4), replica(5)])
    assert config.is_quorum([replica(1), replica(2), replica(5)])


@pytest.mark.parametrize(
    ("field", "value"),
    [("election_timeout_s", 0), ("max_append_bytes", -1), ("clock_drift", 1), ("heartbeat_interval_s", 0.8)],
)
def test_settings_that_cannot_work_are_named(field: str, value: float) -> None:
    RaftSettings().validate()
    with pytest.raises(ConfigError, match=field):
        RaftSettings(**{field: value}).validate()


@pytest.mark.parametrize(
    ("election_timeout_s", "heartbeat_interval_s", "lease_s"),
    [(1.5, 0.15, 0.75), (0.5, 0.1, 0.3), (0.4, 0.2, 0.4), (500.0, 0.15, 60.0)],
)
def test_a_lease_is_half_an_election_timeout_but_at_least_three_heartbeats_and_at_most_a_minute(
    election_timeout_s: float, heartbeat_interval_s: float, lease_s: float
) -> None:
    settings = RaftSettings(election_timeout_s=election_timeout_s, heartbeat_interval_s=heartbeat_interval_s)
    assert settings.lease_s == pytest.approx(lease_s)
