"""Records that one node writes to a partition that another node leads."""

import msgspec

from penstock.types import GroupId


class AppendBatch(msgspec.Struct, frozen=True, array_like=True):
    """The response is the offset of the batch's first record, once the batch is committed."""

    group: GroupId
    batch: bytes
