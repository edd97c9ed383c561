"""The columns of an archived record, as Arrow has them, and the day that a record belongs to."""

from datetime import date
from typing import Final

import numpy as np
import pyarrow as pa

DATE: Final = "date"
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

RECORD_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("timestampType", pa.int32()),
        ("headers", HEADERS),
        (DATE, pa.date32()),
    ]
)
"""The table of a topic whose values are not decoded."""

DAY_US: Final = 24 * 3600 * 1_000_000
FIRST_DAY: Final = (date(1, 1, 1) - date(1970, 1, 1)).days
LAST_DAY: Final = (date(9999, 12, 31) - date(1970, 1, 1)).days
"""Days since 1970. Producers choose timestamps, in microseconds by mistake too. Most engines have no date for these, so
that records before and after are kept under the first or the last date; their timestamp stays as it is."""


def utc_dates(timestamps: pa.Array) -> pa.Array:
    """The days that records with these timestamps belong to."""
    times = timestamps.cast(TIMESTAMP).cast(pa.int64()).to_numpy()
    days = np.clip(times // DAY_US, FIRST_DAY, LAST_DAY).astype(np.int32)
    return pa.array(days).cast(pa.date32())


# The day in UTC whatever the session's time zone is, and in whole numbers: exact for every timestamp.
_DAY: Final = f"((unix_micros(timestamp) - pmod(unix_micros(timestamp), {DAY_US}L)) div {DAY_US}L)"
UTC_DATE: Final = f"date_from_unix_date(cast(least(greatest({_DAY}, {FIRST_DAY}L), {LAST_DAY}L) as int))"
"""The same as an expression of Spark's SQL over the column `timestamp`."""
