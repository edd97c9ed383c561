"""Which attempts each owner has: an index of the store, by owner and by producer.

It follows from the records in the log, in which an attempt names its owner.
"""

from collections.abc import Iterator

from penstock.transactions.transaction import Transaction


class AttemptPool:
    """The attempts of one owner, by transactional id."""

    __slots__ = ("by_producer", "creating", "lent", "partitions", "timeout_ms")

    def __init__(self) -> None:
        self.by_producer: dict[int, str] = {}
        """All whose record is in the log, by producer id."""
        self.lent: set[str] = set()
        self.creating: set[str] = set()
        """Those whose first record is being written."""
        self.timeout_ms = 0
        """The longest timeout of those that are lent."""
        self.partitions = 0
        """The partitions of all their transactions, added up."""

    def __len__(self) -> int:
        return len(self.by_producer) + len(self.creating)

    @property
    def names(self) -> Iterator[str]:
        yield from self.by_producer.values()
        yield from self.creating


class AttemptPools:
    """The pools of all owners that have any attempts."""

    def __init__(self) -> None:
        self._pools: dict[str, AttemptPool] = {}

    def find(self, owner: str) -> AttemptPool | None:
        return self._pools.get(owner)

    def owners(self) -> list[str]:
        return list(self._pools)

    def begin(self, owner: str, name: str) -> None:
        """The first record of an attempt is being written."""
        self._pools.setdefault(owner, AttemptPool()).creating.add(name)

    def give_up(self, owner: str, name: str) -> None:
        """It could not be written."""
        self._pools[owner].creating.discard(name)
        self._drop_if_empty(owner)

    def attempt_of(self, owner: str, producer_id: int) -> str | None:
        """The transactional id of the attempt with this producer."""
        pool = self._pools.get(owner)
        return None if pool is None else pool.by_producer.get(producer_id)

    def add(self, name: str, value: Transaction) -> None:
        """The log has this state of an id, which may be an attempt."""
        if not value.owner:
            return
        pool = self._pools.setdefault(value.owner, AttemptPool())
        pool.creating.discard(name)
        pool.by_producer[value.producer_id] = name
        pool.partitions += len(value.partitions)
        if value.is_lent:
            pool.lent.add(name)
            pool.timeout_ms = max(pool.timeout_ms, value.timeout_ms)

    def remove(self, name: str, value: Transaction | None) -> None:
        """The log has another state now, or none."""
        if value is None or not value.owner:
            return
        pool = self._pools[value.owner]
        pool.by_producer.pop(value.producer_id, None)
        pool.partitions -= len(value.partitions)
        pool.lent.discard(name)
        if not pool.lent:
            pool.timeout_ms = 0
        self._drop_if_empty(value.owner)

    def _drop_if_empty(self, owner: str) -> None:
        if not len(self._pools[owner]):
            del self._pools[owner]
