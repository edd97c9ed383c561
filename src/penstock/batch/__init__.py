"""Record batches: the one form in which records travel, are stored and are replicated."""

from penstock.batch._scan import Columns
from penstock.batch.compression import MAX_DECOMPRESSED_BYTES, compress, decompress
from penstock.batch.header import (
    HEADER_SIZE,
    BatchHeader,
    Buffer,
    check_batch,
    check_produced,
    iter_headers,
    read_header,
    set_log_append_time,
    stamp,
    zero_width_batch,
)
from penstock.batch.records import (
    Record,
    build_batch,
    read_records,
    recompress,
    scan_batch,
    validate_records,
)

__all__ = [
    "HEADER_SIZE",
    "MAX_DECOMPRESSED_BYTES",
    "BatchHeader",
    "Buffer",
    "Columns",
    "Record",
    "build_batch",
    "check_batch",
    "check_produced",
    "compress",
    "decompress",
    "iter_headers",
    "read_header",
    "read_records",
    "recompress",
    "scan_batch",
    "set_log_append_time",
    "stamp",
    "validate_records",
    "zero_width_batch",
]
