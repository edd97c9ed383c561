"""The on-disk format of one partition, byte by byte, and how recovery reads it. All numbers are big-endian.

TOPIC-PARTITION/
  BASE.log         record batches, back to back; BASE is the first offset in 20 digits; a *segment*
  BASE.index       sparse: where in BASE.log a batch begins                               (can be rebuilt)
  BASE.timeindex   sparse: the greatest timestamp below an offset                         (can be rebuilt)
  OFFSET.snapshot  all that the log knows besides its bytes, as of OFFSET                 (can be rebuilt)
  checkpoint       where the log starts, and up to where it is known to be flushed
  reset            the log is to begin anew behind the prefix that stands here: finished on sight (reset.py)
  *.tmp, *.cleaned unfinished work of a process that died: removed on sight
  BASE-END.swap    a compacted segment that replaces all segments of that range: finished on sight

BASE.log           batches in Kafka's format v2 as they travel (penstock.batch.header has the bytes), offsets rising
                   without gaps, unless compacted. Besides what clients wrote there are *control entries*: batches
                   of zero width (last_offset_delta -1, no records) that clients never see. Their payload:
     61   1  kind: 0 a new term begins here, 1 the caller's own
     62   4  term            both stand in the batch's header too, but the CRC of a batch covers neither ...
     66   8  offset          ... of these two fields there, and it does here
     74      the caller's payload (kind 1), at most 414 bytes, because the last one must fit into the checkpoint
                   A term begins with an entry of kind 0, so every batch's term can be checked against it. Raft's index
                   of an entry is its offset plus the control entries before it (controls.py). What comes behind a
                   control entry goes into the same segment, even if that is full: a control entry takes no offset, so
                   at a segment's end its loss would not be seen.

checkpoint         two slots of 512 bytes (a sector: written whole or not at all), used in turn; the higher sequence
                   of the valid ones counts. A slot:
      0   4  "PCKP"          4   2  version, 1
      6   2  1 while compacted segments are being put in place, else 0
      8   8  sequence
     16   8  start_offset    the first offset that readers may see
     24   8  first_base      segments with a lower BASE are being removed: some may be gone
     32   8  start_controls  control entries before first_base
     40   8  flushed offset: all below it is on the disk, which means ...
     48   8  ... in the segment with this BASE ...
     56   8  ... all before this position
     64   8  cleaned_offset  below it offsets may be missing: compaction has been there
     72   4  CRC-32C of the 72 bytes before
     then, unless written by the first version, which had nothing here:
     76   8  term of the last entry before first_base
     84   8  gaps_below      below it offsets may be missing: the entries came from a log that was compacted
     92   2  length of ...
     94      ... the last payload of the caller's own (kind 1) before first_base, and after it
          4  CRC-32C of all the bytes of the slot before

BASE.index and BASE.timeindex share a head:
      0   4  "PIDX" or "PTIX" 4   2  version, 1       6   2  zero
      8   8  BASE
     16   8  bytes of BASE.log that it covers
     24   8  the offset after the segment's last
     32   8  greatest timestamp in the segment, ms    40   8  the first batch's, ms (when to roll by time)
     48   8  when tombstones in it may go, ms; -1: not compacted, or none there
     56   4  control entries in the segment           60   4  number of index entries
     64   4  CRC-32C of the entries                   68   4  CRC-32C of the 68 bytes before
  then the entries, column by column:
     .index      4 each: offset - BASE;  then 4 each: position of that batch in BASE.log. A control entry always has
                 an index entry, and so has the batch after it: this is how a reader finds where to stop.
     .timeindex  8 each: a timestamp;    then 4 each: offset - BASE. No record below the offset is later than that.

OFFSET.snapshot
      0   4  "PSNP"          4   2  version, 1        6   2  zero
      8   4  body length    12   4  CRC-32C of the body
     16      body: a MessagePack array (snapshot.Snapshot): position of OFFSET, the log's start, terms and where they
             begin, the control entries, idempotent producers
  There is one for the first offset of each segment but a log's very first, saved before a later one is. The index of
  the first entry, the term before it, and what producers had sent by then cannot be derived once the prefix is deleted.
  So segments are removed in this order: a snapshot behind them is flushed (and with it that of the first segment which
  stays), then a checkpoint whose first_base is behind them, then the files go. After a power cut anywhere in between,
  either they are all there and are read or set aside, or the checkpoint tells all but the producers and the snapshot
  those too. Only where there is no room for a snapshot they go without one, and what producers sent is forgotten.

reset
      0   4  CRC-32C of the rest
      4      a MessagePack array (reset.Prefix): first offset and index, the term before, start, producers, gaps_below,
             the caller's payload. Written and flushed under another name first, so it is whole when it is there; from
             then on all other files are the old log's and count for nothing.

A torn tail and a corrupt log
  A power cut keeps any subset of the sectors that were not flushed. So in the unflushed part a bad batch may well be
  followed by good ones: that is no corruption but a tail that was torn, and nobody was promised any of it. In the
  flushed part every byte was promised, and a wrong one is a lie of the disk. From the bytes alone the two cannot be
  told apart. They are told apart by the *flushed line*, the greater of the checkpoint's flushed position and the
  newest snapshot's. Both are written only after the flush that they speak of has returned, so the line is never too
  high: below it, whatever is wrong is CorruptLog with file and position; above it, the log ends at the first thing
  that is wrong. The line may be too low: a checkpoint is written for every CHECKPOINT_INTERVAL_BYTES, at every
  housekeeping and on close, and not itself flushed. Rot in the bytes between, before a crash, is taken for a torn
  tail. That window of a megabyte or a few seconds is the price of not paying a second flush for each flush.
  Truncation moves the line down, durably and before the first byte goes, because new bytes will stand there that are
  not flushed.

How recovery reads it
  1. An announced reset is finished. Unfinished swaps are finished and temporary files removed.
  2. The newest valid snapshot is loaded. Without one, the scan starts at the first segment with nothing known.
     Segments below first_base, and those wholly below both start_offset and the snapshot, only wait for removal.
  3. Segments before the snapshot: the head of .index must fit the file's size and the next segment's BASE, or the
     segment is scanned and its indexes are rebuilt.
  4. From the snapshot's position on every batch is read: length, CRC, offset after offset (rising, where compaction
     has been), term equal to the term last begun. This rebuilds indexes, terms, controls and producers.
  5. At the first thing wrong: CorruptLog below the line, else the file is cut there and later segments are removed.
  6. What was scanned above the line is flushed: from here on it is as good as acknowledged.
  After a clean close the snapshot's position is the end of the last file, so nothing is scanned.
"""

from struct import Struct

from penstock.errors import CorruptLog

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
SNAPSHOT_SUFFIX = ".snapshot"
TEMPORARY_SUFFIX = ".tmp"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
DELETED_SUFFIX = ".deleted"
CHECKPOINT_NAME = "checkpoint"
RESET_NAME = "reset"

OFFSET_DIGITS = 20
FORMAT_VERSION = 1

TERM_START = 0
CALLERS_OWN = 1
CONTROL_HEAD = Struct(">Biq")


def file_name(offset: int, suffix: str) -> str:
    return f"{offset:020d}{suffix}"


def sidecar(folder: str, offset: int, suffix: str) -> str:
    return f"{folder}/{offset:020d}{suffix}"


def offsets_of(names: list[str], suffix: str) -> list[int]:
    """The offsets in the names of the files of one kind, rising."""
    stems = [name[: -len(suffix)] for name in names if name.endswith(suffix)]
    return sorted(int(stem) for stem in stems if len(stem) == OFFSET_DIGITS and stem.isdigit())


def swap_name(base_offset: int, end_offset: int) -> str:
    return f"{base_offset:020d}-{end_offset:020d}{SWAP_SUFFIX}"


def swap_range(name: str) -> tuple[int, int]:
    """First offset and the offset after the last of what this swap file replaces."""
    base, _, end = name[: -len(SWAP_SUFFIX)].partition("-")
    return int(base), int(end)


def control_payload(kind: int, term: int, offset: int, payload: bytes = b"") -> bytes:
    return CONTROL_HEAD.pack(kind, term, offset) + payload


def check_format(path: str, magic: bytes, expected_magic: bytes, version: int) -> None:
    """For files whose checksum is right: only another version of Penstock can have written them so."""
    if magic != expected_magic or version != FORMAT_VERSION:
        raise CorruptLog(path, 0, f"format {magic!r} version {version}: expected {expected_magic!r} 1")
