"""The settings of one queue, and its limits."""

import msgspec

from penstock.errors import ConfigError

MAX_DELIVERIES = 255
"""Deliveries are counted in one byte and not beyond this. Kafka allows limits up to 10."""
MAX_DELAY_MS = 366 * 24 * 3600 * 1000
"""The longest retry delay: a message that is to wait for more than a year is not being retried."""

MAX_LANES = 65_535
"""Lanes are stored in two bytes, and 65,535 stands for no lane."""


class RetryBackoffSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How long a released message waits when its consumer names no delay: longer with each delivery."""

    first_ms: int
    factor: float = 2.0
    max_ms: int = 600_000

    def delay_ms(self, deliveries: int) -> int:
        """The delay after this many deliveries (1 or more)."""
        delay: float = self.first_ms
        for _ in range(deliveries - 1):
            delay *= self.factor
            if delay >= self.max_ms:
                return self.max_ms
        return min(int(delay), self.max_ms)


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One queue's settings for each of its partitions."""

    lease_ms: int = 30_000
    """Kafka's group.share.record.lock.duration.ms."""
    delivery_limit: int = 5
    """Kafka's group.share.delivery.count.limit; a message that comes back after that many deliveries goes to the dead
    letters. 0: no limit."""
    max_leased: int = 100_000
    """Messages leased at once. Each costs about six bytes here, and a consumer's memory elsewhere."""
    max_chunks: int = 16_384
    """Chunks with undone offsets: how far the queue reads beyond a stuck message, at 8 to 60 KiB a chunk. 67 million
    offsets, so that a few million scheduled messages do not block it."""
    max_waiting: int = 100_000
    """Messages that an earlier one of their key blocks, some 300 bytes each: how far a key-ordered queue reads beyond a
    slow key."""
    key_ordered: bool = False
    strict: bool = False
    """Strict order, for queues with one consumer at a time (invariant 9 in `partition.py`)."""
    lanes: int = 0
    """How many lanes the messages are divided into (`lanes.py`, invariant 10). 0: none."""
    max_ahead: int = 500_000
    """With lanes, available messages, some 50 bytes each: how far the queue reads beyond messages whose owner does not
    get them."""
    retry_backoff: RetryBackoffSettings | None = None
    """None: a message that is released without a delay is available again at once."""
    dead_letters: bool = True
    """False: messages that would go there are dropped, as Kafka does."""

    def validate(self) -> None:
        for name in ("lease_ms", "max_leased", "max_chunks", "max_waiting", "max_ahead"):
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "1 or more")
        if not 0 <= self.delivery_limit <= MAX_DELIVERIES:
            raise ConfigError("delivery_limit", self.delivery_limit, f"0 to {MAX_DELIVERIES}")
        if not 0 <= self.lanes <= MAX_LANES:
            raise ConfigError("lanes", self.lanes, f"0 to {MAX_LANES}")
        if self.lanes and (self.key_ordered or self.strict):
            raise ConfigError("lanes", self.lanes, "0 in a queue with key order or strict order")
        backoff = self.retry_backoff
        if backoff is not None and not (0 < backoff.first_ms <= backoff.max_ms <= MAX_DELAY_MS):
            raise ConfigError("retry_backoff", backoff, f"0 < first_ms <= max_ms <= {MAX_DELAY_MS}")
        if backoff is not None and not backoff.factor >= 1:
            raise ConfigError("retry_backoff.factor", backoff.factor, "1 or more")
