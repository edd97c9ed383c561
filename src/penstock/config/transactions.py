"""Settings of transactions."""

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.config.fields import check_fields

HOUR_MS = 3_600_000


class TransactionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of transactions. The defaults are Kafka's."""

    max_timeout_ms: Annotated[int, Meta(ge=1, le=HOUR_MS)] = 900_000
    """The longest timeout that a producer may ask for (transaction.max.timeout.ms). At most an
    hour, as Flink asks for: an open transaction holds back all read_committed readers of its partitions."""
    id_expiration_ms: Annotated[int, Meta(ge=1)] = 7 * 24 * HOUR_MS
    """How long a transactional id without a transaction is remembered (transactional.id.expiration.ms)."""
    topic_partitions: Annotated[int, Meta(ge=1, le=1000)] = 50
    """Fixed once the transaction topic exists: it decides which partition a transactional id is in."""

    def validate(self) -> None:
        check_fields(self, "transactions.")
