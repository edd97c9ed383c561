"""The lists of names in requests: repeated names are merged before a handler sees them.

A request of 60 KB can name one topic ten thousand times. If each of these names were answered, the response would be
thousands of times as large as the request, and no other client would be served while it is built. Kafka merges
repeated names in Metadata and Fetch, and its clients never repeat a name in the others. The table in `registry`
states the lists of each API; the work is O(names), and none for a list of one.

Where Kafka refuses repeated names (CreateTopics, DeleteTopics, CreatePartitions, AlterConfigs,
IncrementalAlterConfigs, ListOffsets), the handlers do, with `repeated`.
"""

from collections.abc import Hashable, Iterable
from operator import attrgetter
from typing import Any, NamedTuple

from penstock.kafka.wire import Message


class Names(NamedTuple):
    """One list of a request, the fields that name an element, and the list inside each element."""

    field: str
    key: tuple[str, ...] = ()
    """Empty for a list of plain names or numbers."""
    inner: "Names | None" = None
    """Without one, the last of several elements with the same name counts, as in Kafka."""

    def merge(self, request: Message) -> None:
        rows: list[Any] | None = getattr(request, self.field)
        if not rows:
            return
        if len(rows) > 1:
            unique = self._merged(rows)
            if len(unique) != len(rows):
                setattr(request, self.field, unique)
                rows = unique
        if self.inner is not None:
            for row in rows:
                self.inner.merge(row)

    def _merged(self, rows: list[Any]) -> list[Any]:
        if not self.key:
            return list(dict.fromkeys(rows))
        name = attrgetter(*self.key)
        if self.inner is None:
            return list({name(row): row for row in rows}.values())
        found: dict[Hashable, Any] = {}
        for row in rows:
            first = found.setdefault(name(row), row)
            if first is not row:
                self.inner.join(first, row)
        return list(found.values())

    def join(self, first: Message, second: Message) -> None:
        """Adds the list of the second element to that of the first. None stands for all names."""
        more = getattr(second, self.field)
        if more is None or getattr(first, self.field) is None:
            setattr(first, self.field, None)
        else:
            getattr(first, self.field).extend(more)


def repeated(names: Iterable[Hashable]) -> set[Hashable]:
    """The names that occur more than once."""
    seen: set[Hashable] = set()
    return {name for name in names if name in seen or seen.add(name)}  # type: ignore[func-returns-value]
