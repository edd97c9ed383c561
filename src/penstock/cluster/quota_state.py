"""The quotas of a cluster, as metadata records have made them. It refuses nothing itself: see `quota_decisions.py`."""

from collections.abc import Iterable, Mapping

import msgspec

from penstock.security.quotas import QuotaEntity, QuotaKind, QuotaTable


class QuotaEntry(msgspec.Struct, frozen=True, array_like=True):
    """All quotas of one entity, by Kafka's names for them."""

    entity: QuotaEntity
    values: dict[str, float]


class QuotaState:
    """Changes only by its methods, which the metadata state calls when it applies a record."""

    def __init__(self, entries: Iterable[QuotaEntry] = ()) -> None:
        self._entries = {entry.entity: dict(entry.values) for entry in entries}
        self._table: QuotaTable | None = None

    @property
    def entries(self) -> Mapping[QuotaEntity, Mapping[str, float]]:
        return self._entries

    @property
    def table(self) -> QuotaTable:
        """Another object after every change. It is made when it is asked for: a log with thousands of changes makes one
        table, not thousands."""
        if self._table is None:
            self._table = QuotaTable(
                {entity: _known(values) for entity, values in self._entries.items() if _known(values)}
            )
        return self._table

    def put(self, entry: QuotaEntry) -> None:
        """An entity without a quota is forgotten."""
        if entry.values:
            self._entries[entry.entity] = dict(entry.values)
        else:
            self._entries.pop(entry.entity, None)
        self._table = None

    def snapshot(self) -> list[QuotaEntry]:
        return [QuotaEntry(entity, dict(values)) for entity, values in self._entries.items()]

    def restore(self, entries: Iterable[QuotaEntry]) -> None:
        """In place: other parts of the node hold this object."""
        self._entries = {entry.entity: dict(entry.values) for entry in entries}
        self._table = None

    def copy(self) -> "QuotaState":
        copy = QuotaState()
        copy._entries, copy._table = dict(self._entries), self._table
        return copy


def _known(values: Mapping[str, float]) -> dict[QuotaKind, float]:
    """A newer node may have set a quota that this version does not know: the others hold all the same."""
    return {QuotaKind(name): value for name, value in values.items() if name in _KINDS}


_KINDS = frozenset(QuotaKind)
