"""Record batches: the format in which records are sent, stored and replicated."""

from penstock.batch import _scan
from penstock.batch._count import check_count
from penstock.batch._scan import Columns
from penstock.batch.compression import compress, decompress
from penstock.batch.header import (
    HEADER_SIZE,
    BatchHeader,
    Buffer,
    check_batch,
    check_header,
    check_produced,
    iter_headers,
    read_header,
    set_log_append_time,
    stamp,
    zero_width_batch,
)
from penstock.batch.markers import (
    EndMarker,
    build_marker,
    delete_horizon_ms,
    read_marker,
    with_delete_horizon,
)
from penstock.batch.records import (
    Record,
    build_batch,
    first_batches,
    read_records,
    recompress,
    scan_batch,
    unpacked_bytes,
    unpacked_total,
    validate_records,
)

IS_COMPILED = not str(_scan.__file__).endswith(".py")
"""Whether mypyc has compiled the loops over records. Without it they run as Python, and slower."""

__all__ = [
    "HEADER_SIZE",
    "IS_COMPILED",
    "BatchHeader",
    "Buffer",
    "Columns",
    "EndMarker",
    "Record",
    "build_batch",
    "build_marker",
    "check_batch",
    "check_count",
    "check_header",
    "check_produced",
    "compress",
    "decompress",
    "delete_horizon_ms",
    "first_batches",
    "iter_headers",
    "read_header",
    "read_marker",
    "read_records",
    "recompress",
    "scan_batch",
    "set_log_append_time",
    "stamp",
    "unpacked_bytes",
    "unpacked_total",
    "validate_records",
    "with_delete_horizon",
    "zero_width_batch",
]
