"""The on-disk format of one partition, byte by byte, and how recovery reads it. All numbers are big-endian.

TOPIC-PARTITION/
  BASE.log         record batches, back to back; BASE is the first offset in 20 digits; a *segment*
  BASE.index       sparse: where in BASE.log a batch begins                               (can be rebuilt)
  BASE.timeindex   sparse: the greatest timestamp below an offset                         (can be rebuilt)
  OFFSET.snapshot  the state as of OFFSET: terms, control entries, producers, transactions (can be rebuilt)
  checkpoint       where the log starts, and up to where it is known to be flushed
  reset            the log is to begin behind the prefix described here: opening completes it (reset.py)
  *.tmp, *.cleaned unfinished work of a process that died: opening removes it
  BASE-END.swap    a compacted segment that replaces all segments of that range: opening completes the replacement

BASE.log           batches in Kafka's format v2 as they are sent (penstock.batch.header has the bytes), offsets rising
                   without gaps, unless compacted. The markers that end transactions are among them: they own offsets.
                   Besides these batches there are *control entries*: batches of zero width (last_offset_delta -1, no
                   records) that clients never see. Their payload:
     61   1  kind: 0 a new term begins here, 1 the caller's own
     62   4  term            these two fields are in the batch's header too; the CRC of a batch ...
     66   8  offset          ... covers them here and not there
     74      the caller's payload (kind 1), at most 414 bytes, because the last one must fit into the checkpoint
                   A term begins with an entry of kind 0, so every batch's term can be checked against it. Raft's index
                   of an entry is its offset plus the number of control entries before it (controls.py). The entry
                   after a control entry goes into the same segment, even if that is full: a control entry takes no
                   offset, so if it were the last of its segment and got lost, the next segment would still seem to fit.

checkpoint         two slots of 512 bytes (a sector: written whole or not at all), used in turn; the higher sequence
                   of the valid ones counts. A slot:
      0   4  "PCKP"          4   2  version, 1
      6   2  1 while compacted segments replace old ones, else 0
      8   8  sequence
     16   8  start_offset    the first offset that readers may see
     24   8  first_base      segments with a lower BASE are being removed: some may be gone
     32   8  start_controls  control entries before first_base
     40   8  flushed offset: all records below it are on the disk, ...
     48   8  ... that is: in the segment with this BASE ...
     56   8  ... all bytes before this position, and all segments before
     64   8  cleaned_offset  below it offsets may be missing: compaction has removed them here
     72   4  CRC-32C of the 72 bytes before
     then, except in files of the first version, which end here:
     76   8  term of the last entry before first_base
     84   8  gaps_below      below it offsets may be missing: the entries came from a compacted log
     92   2  length of ...
     94      ... the last payload of the caller's own (kind 1) before first_base, and after it
          4  CRC-32C of all bytes of the slot before this field

BASE.index and BASE.timeindex share a head:
      0   4  "PIDX" or "PTIX" 4   2  version, 1       6   2  zero
      8   8  BASE
     16   8  bytes of BASE.log that the index covers
     24   8  the offset after the segment's last
     32   8  greatest timestamp in the segment, ms    40   8  the first batch's, ms (when to roll by time)
     48   8  when its tombstones and markers may be removed, ms; -1: not compacted, or it has none
     56   4  control entries in the segment           60   4  number of index entries
     64   4  CRC-32C of the entries                   68   4  CRC-32C of the 68 bytes before
  then the entries, column by column:
     .index      4 each: offset - BASE;  then 4 each: position of that batch in BASE.log. A control entry always has
                 an index entry, and so has the batch after it: a reader finds with them where to stop.
     .timeindex  8 each: a timestamp;    then 4 each: offset - BASE. No record below the offset is later than that.

OFFSET.snapshot
      0   4  "PSNP"          4   2  version, 1        6   2  zero
      8   4  body length    12   4  CRC-32C of the body
     16      body: a MessagePack array (snapshot.Snapshot): position of OFFSET, the log's start, terms and where they
             begin, the control entries, idempotent producers, transactions. Fields that were added later are at the
             end: older files lack them, and older versions ignore them
  Each segment except a log's very first has a snapshot of its first offset, saved before any later snapshot. The index
  of the first entry, the term before it, and what producers had sent before it cannot be derived once the prefix is
  deleted. So segments are removed in this order: flush a snapshot of an offset behind them (and the snapshot of the
  first segment that stays), then flush a checkpoint whose first_base is behind them, then remove the files. After a
  power cut anywhere in between, either all the files are there, and are read or set aside, or the checkpoint has
  everything but the producers and the snapshot has those. Only where there is no space for a snapshot, files are
  removed without one, and the log forgets what producers sent.

reset
      0   4  CRC-32C of the rest
      4      a MessagePack array (reset.Prefix): first offset and index, the term before, start, producers, gaps_below,
             the caller's payload, open transactions. It is written and flushed under another name first, so it is
             complete when it has this name; from then on all other files belong to the old log and are ignored.

A torn tail and a corrupt log
  A power cut keeps any subset of the sectors that were not flushed. So in the unflushed part a bad batch may well be
  followed by good ones: that is a torn tail, and no client was told that any of it is stored. In the flushed part every
  byte was promised, and a wrong byte is an error of the disk. The bytes alone cannot distinguish the two cases. The
  *flushed line* does: the greater of the checkpoint's flushed position and the newest snapshot's. Both are written only
  after the flush that they record has returned, so the line is never too high. Below the line, every wrong byte is
  CorruptLog with file and position; above it, the log ends at the first wrong byte. The line may be too low: a
  checkpoint is written for every CHECKPOINT_INTERVAL_BYTES, at every maintenance and on close, and is not itself
  flushed. If bytes in between rot before a crash, recovery takes them for a torn tail. That window of a megabyte or a
  few seconds saves a second flush for each flush. Truncation moves the line down, durably and before the first byte is
  removed, because new bytes will be written there that are not flushed.

How recovery reads it
  1. It completes an announced reset and unfinished swaps, and removes temporary files.
  2. It loads the newest valid snapshot. Without one, the scan starts at the first segment with an empty state.
     Segments below first_base, and those wholly below both start_offset and the snapshot, are only kept for removal.
  3. Segments before the snapshot: the head of .index must fit the file's size and the next segment's BASE, or
     recovery scans the segment and rebuilds its indexes.
  4. From the snapshot's position on it reads every batch: length, CRC, consecutive offsets (rising ones, where
     compaction has been), term equal to the term last begun. This rebuilds indexes, terms, controls and producers.
     Before it reads a segment with bytes above the line, it flushes the file and makes the system forget its cache:
     after a failed flush the system may still show bytes that it has dropped. So what is read counts as flushed.
  5. At the first wrong byte: CorruptLog below the line; above it, recovery cuts the file and removes later segments.
  After a clean close the snapshot's position is the end of the last file, so recovery scans nothing.
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


FILE_NAME_BYTES_MAX = 255
"""The most of Linux' and macOS' file systems. Folders of partitions have up to 255: 249 of the topic, and its index."""
KEPT_OF_END = 16


def name_aside(folder: str, suffix: str) -> str:
    """The name that a partition's folder gets when it is moved out of the way, shortened in the middle if needed. Names
    that were shortened may be equal: check that the name is free."""
    most = FILE_NAME_BYTES_MAX - len(suffix)
    if len(folder) > most:
        folder = f"{folder[: most - KEPT_OF_END - 1]}~{folder[-KEPT_OF_END:]}"
    return folder + suffix


def file_name(offset: int, suffix: str) -> str:
    return f"{offset:020d}{suffix}"


def sidecar(folder: str, offset: int, suffix: str) -> str:
    return f"{folder}/{offset:020d}{suffix}"


def offsets_of(names: list[str], suffix: str) -> list[int]:
    """The offsets in the names of the files with this suffix, rising."""
    stems = [name[: -len(suffix)] for name in names if name.endswith(suffix)]
    return sorted(int(stem) for stem in stems if len(stem) == OFFSET_DIGITS and stem.isdigit())


def swap_name(base_offset: int, end_offset: int) -> str:
    return f"{base_offset:020d}-{end_offset:020d}{SWAP_SUFFIX}"


def swap_range(name: str) -> tuple[int, int]:
    """The offsets that this swap file replaces: the first, and the one after the last."""
    base, _, end = name[: -len(SWAP_SUFFIX)].partition("-")
    return int(base), int(end)


def control_payload(kind: int, term: int, offset: int, payload: bytes = b"") -> bytes:
    return CONTROL_HEAD.pack(kind, term, offset) + payload


def check_format(path: str, magic: bytes, expected_magic: bytes, version: int) -> None:
    """For files whose checksum is right: if this fails, another version of Penstock has written them."""
    if magic != expected_magic or version != FORMAT_VERSION:
        raise CorruptLog(path, 0, f"format {magic!r} version {version}: expected {expected_magic!r} 1")
