"""What producers of whole batches need: records from columns, and the partitions of keys. A broker does not load it."""

from penstock.batch._encode import Column, EncodedRows, HeaderColumn, RowColumns, encode_columns
from penstock.batch._partition import group_rows, murmur2, partition_of_keys

__all__ = [
    "Column",
    "EncodedRows",
    "HeaderColumn",
    "RowColumns",
    "encode_columns",
    "group_rows",
    "murmur2",
    "partition_of_keys",
]
