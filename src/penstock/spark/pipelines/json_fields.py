"""Fields of JSON values, and times in them, as columns."""

import re
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from penstock.errors import ConfigError

FIELD: Final = re.compile(r"[A-Za-z0-9_ -]+(\.[A-Za-z0-9_ -]+)*")
DURATION: Final = re.compile(r"(\d+) (millisecond|second|minute|hour|day|week)s?")

FIRST_MS: Final = -62_135_596_800_000
LAST_MS: Final = 253_402_300_799_999
"""The years 1 to 9999. Numbers beyond them are no ms (microseconds, perhaps), and one alone would push the watermark
past all that is to come."""


def check_field(name: str, field: str | None) -> None:
    if field is not None and not FIELD.fullmatch(field):
        raise ConfigError(name, field, "a field's name, such as customer or customer.id")


def check_duration(name: str, text: str | None) -> None:
    if text is not None and not DURATION.fullmatch(text):
        raise ConfigError(name, text, 'a time such as "5 minutes", "30 seconds" or "1 hour"')


def field_of(name: str) -> Column:
    """A field as text; null if the value is no JSON object or does not have it."""
    return F.get_json_object(F.col("value").cast("string"), f"$.{name}")


def key_or_field(name: str | None) -> Column:
    """A field as text; None: the record's key."""
    return F.col("key").cast("string") if name is None else field_of(name)


def time_of(field: str | None) -> Column:
    """A field with ISO 8601 or ms since 1970; the record's timestamp without such a field, and where it is missing."""
    if field is None:
        return F.col("timestamp")
    text = field_of(field)
    number, moment = text.try_cast("bigint"), text.try_cast("timestamp")
    first, last = F.timestamp_millis(F.lit(FIRST_MS)), F.timestamp_millis(F.lit(LAST_MS))
    return F.coalesce(
        F.when(number.between(FIRST_MS, LAST_MS), F.timestamp_millis(number)),
        F.when(number.isNull() & moment.between(first, last), moment),
        F.col("timestamp"),
    )
