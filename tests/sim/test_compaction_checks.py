"""Which records compaction may remove from a log, and which it must keep."""

import pytest

from penstock.batch import EndMarker, Record, build_batch, build_marker, read_records, zero_width_batch
from penstock.sim.compaction_checks import CommittedKeys
from penstock.sim.entries import Entry
from penstock.sim.outcome import Violation


def entry(offset: int, *rows: tuple[bytes, bytes | None]) -> Entry:
    """A batch of term 1 with these keys and values."""
    records = [Record(offset + n, 1000, key, value) for n, (key, value) in enumerate(rows)]
    data = build_batch(records, base_offset=offset, leader_epoch=1)
    return Entry(offset, offset + len(rows), 1, offset, False, data)


def without(whole: Entry, *offsets: int) -> Entry:
    """The same batch with fewer records."""
    kept = [record for record in read_records(whole.data) if record.offset not in offsets]
    width = whole.end - whole.start - 1
    data = build_batch(kept, base_offset=whole.offset, leader_epoch=whole.term, last_offset_delta=width)
    return whole._replace(data=data)


TRUTH = [
    entry(0, (b"a", b"1"), (b"b", b"1")),
    entry(2, (b"a", b"2")),
    entry(3, (b"b", None)),
    entry(4, (b"c", b"1")),
]


@pytest.fixture
def committed_keys() -> CommittedKeys:
    committed_keys = CommittedKeys()
    for one in TRUTH:
        committed_keys.add(one)
    return committed_keys


def test_a_log_may_lack_superseded_records_in_part_of_a_batch_or_all_of_it(
    committed_keys: CommittedKeys,
) -> None:
    committed_keys.check("n1", TRUTH, TRUTH, whole=True)
    committed_keys.check("n1", [without(TRUTH[0], 0), *TRUTH[1:]], TRUTH, whole=True)
    committed_keys.check("n1", TRUTH[1:], TRUTH, whole=True)


def test_the_newest_record_of_a_key_must_not_go(committed_keys: CommittedKeys) -> None:
    with pytest.raises(Violation, match="the last word on a key stays: n1 has lost 2"):
        committed_keys.check("n1", [TRUTH[0], *TRUTH[2:]], TRUTH, whole=True)


def test_a_tombstone_may_go_once_nothing_older_of_its_key_is_left(committed_keys: CommittedKeys) -> None:
    committed_keys.check("n1", [TRUTH[1], TRUTH[3]], TRUTH, whole=True)
    with pytest.raises(Violation, match="what was deleted stays deleted: n1 has 1 of b'b'"):
        committed_keys.check("n1", [TRUTH[0], TRUTH[1], TRUTH[3]], TRUTH, whole=True)


def test_a_tombstone_may_be_missing_if_it_was_missing_when_the_replica_received_its_batch(
    committed_keys: CommittedKeys,
) -> None:
    mine = [TRUTH[0], TRUTH[1], without(TRUTH[2], 3), TRUTH[3]]
    committed_keys.received("n1", mine, TRUTH, cleaned=4)  # its own pass has removed it
    with pytest.raises(Violation, match="what was deleted stays deleted"):
        committed_keys.check("n1", mine, TRUTH, whole=True)
    committed_keys.received("n1", mine, TRUTH, cleaned=3)
    committed_keys.check("n1", mine, TRUTH, whole=True)
    with pytest.raises(Violation, match="what was deleted stays deleted"):
        committed_keys.check("n2", mine, TRUTH, whole=True)


def test_no_record_may_change_nor_a_batch_its_range(committed_keys: CommittedKeys) -> None:
    assert "never committed: Record(offset=2" in committed_keys.wrong_with(2, entry(2, (b"a", b"3")).data)
    assert "another head" in committed_keys.wrong_with(2, entry(2, (b"a", b"2"), (b"a", b"3")).data)
    assert committed_keys.wrong_with(9, entry(9, (b"a", b"2")).data) == "was never committed"


def test_control_entries_stay() -> None:
    control = Entry(0, 1, 1, 0, True, zero_width_batch(offset=0, term=1, payload=b"x"))
    with pytest.raises(Violation, match="control entries stay"):
        CommittedKeys().check("n1", [], [control], whole=True)


def fold(*entries: Entry) -> dict[bytes, Record]:
    return {record.key or b"": record for one in entries for record in read_records(one.data)}


def test_a_reader_of_the_whole_log_has_the_last_value_of_each_key(committed_keys: CommittedKeys) -> None:
    committed_keys.check_fold("r1", fold(*TRUTH), 5, keeps_tombstones=True)
    committed_keys.check_fold("r1", fold(*TRUTH[:2]), 3, keeps_tombstones=True)
    with pytest.raises(Violation, match="of b'a'"):
        committed_keys.check_fold("r1", fold(TRUTH[0], TRUTH[2], TRUTH[3]), 5, keeps_tombstones=True)


def test_a_reader_that_missed_a_deletion_is_detected_if_tombstones_are_kept(
    committed_keys: CommittedKeys,
) -> None:
    behind = fold(TRUTH[0], TRUTH[1], TRUTH[3])
    committed_keys.check_fold("r1", behind, 5, keeps_tombstones=False)
    with pytest.raises(Violation, match="of b'b'"):
        committed_keys.check_fold("r1", behind, 5, keeps_tombstones=True)
    committed_keys.check_fold("r1", fold(TRUTH[1], TRUTH[3]), 5, keeps_tombstones=True)


# --- transactions


def in_transaction(offset: int, key: bytes, value: bytes) -> Entry:
    data = build_batch(
        [Record(offset, 1000, key, value)],
        base_offset=offset,
        leader_epoch=1,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    return Entry(offset, offset + 1, 1, offset, False, data)


def marker(offset: int, *, commit: bool) -> Entry:
    end = EndMarker(commit, 1)
    data = build_marker(end, producer_id=7, producer_epoch=0, timestamp_ms=1000, offset=offset, term=1)
    return Entry(offset, offset + 1, 1, offset, False, bytes(data))


def keys_of(*truth: Entry) -> CommittedKeys:
    committed_keys = CommittedKeys()
    for one in truth:
        committed_keys.add(one)
    return committed_keys


PLAIN, INNER = entry(0, (b"a", b"1")), in_transaction(1, b"a", b"2")


def test_a_record_of_an_open_transaction_supersedes_nothing_and_stays() -> None:
    truth = [PLAIN, INNER]
    with pytest.raises(Violation, match="the last word on a key stays: n1 has lost 0"):
        keys_of(*truth).check("n1", [INNER], truth, whole=True)
    with pytest.raises(Violation, match="records of an open transaction stay: n1 has lost 1"):
        keys_of(*truth).check("n1", [PLAIN], truth, whole=True)


def test_a_committed_record_supersedes_others_and_an_aborted_one_may_go() -> None:
    truth = [PLAIN, INNER, marker(2, commit=True)]
    keys_of(*truth).check("n1", truth[1:], truth, whole=True)
    with pytest.raises(Violation, match="the last word on a key stays: n1 has lost 1"):
        keys_of(*truth).check("n1", [PLAIN, truth[2]], truth, whole=True)
    truth = [PLAIN, INNER, marker(2, commit=False)]
    keys_of(*truth).check("n1", [PLAIN], truth, whole=True)
    with pytest.raises(Violation, match="the last word on a key stays: n1 has lost 0"):
        keys_of(*truth).check("n1", truth[1:], truth, whole=True)


def test_a_marker_must_not_go_before_the_batches_of_its_transaction() -> None:
    truth = [INNER, marker(2, commit=False)]
    keys_of(*truth).check("n1", [], truth, whole=True)
    with pytest.raises(Violation, match="a marker stays as long as its transaction: n1 has the batch at 1"):
        keys_of(*truth).check("n1", truth[:1], truth, whole=True)
