"""Record batches: the format in which records are sent, stored and replicated."""

from penstock.batch import _scan
from penstock.batch._count import check_count
from penstock.batch._encode import Column, EncodedRows, HeaderColumn, RowColumns, encode_columns
from penstock.batch._partition import group_rows, murmur2, partition_of_keys
from penstock.batch._scan import Columns
from penstock.batch.compression import compress, decompress
from penstock.batch.fetched_aborts import AbortedBatches
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
from penstock.batch.outgoing import pack_batch, renumber
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
    "AbortedBatches",
    "BatchHeader",
    "Buffer",
    "Column",
    "Columns",
    "EncodedRows",
    "EndMarker",
    "HeaderColumn",
    "Record",
    "RowColumns",
    "build_batch",
    "build_marker",
    "check_batch",
    "check_count",
    "check_header",
    "check_produced",
    "compress",
    "decompress",
    "delete_horizon_ms",
    "encode_columns",
    "first_batches",
    "group_rows",
    "iter_headers",
    "murmur2",
    "pack_batch",
    "partition_of_keys",
    "read_header",
    "read_marker",
    "read_records",
    "recompress",
    "renumber",
    "scan_batch",
    "set_log_append_time",
    "stamp",
    "unpacked_bytes",
    "unpacked_total",
    "validate_records",
    "with_delete_horizon",
    "zero_width_batch",
]
