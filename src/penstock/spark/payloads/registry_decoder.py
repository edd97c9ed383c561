"""Values whose writers' schemas are in a registry: each record is read by its own schema, and matched to the columns.

Records of one schema are decoded together. Columns are matched by name: fields that the columns do not have are left
out, a column that a writer did not have yet is null, numbers must fit.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from penstock.schema_registry.framing import HEADER, Framed, SchemaKey, WriterSchema, framed

from .arrow_fit import Convert, fit
from .interfaces import BadValue, Decoded, Decoder, PayloadError, clip
from .spark_types import arrow_struct, check_promises

MAX_PLANS: Final = 200
"""Schemas that a task keeps ready: writers decide how many a topic has."""

Lookup = Callable[[SchemaKey], WriterSchema]
WriterOf = Callable[[WriterSchema, tuple[int, ...]], Decoder]
"""The decoder of bare values of a writer's schema; PayloadError if the schema cannot be used."""

PlanKey = tuple[SchemaKey, tuple[int, ...]]


class _Plan(NamedTuple):
    writer: Decoder
    convert: Convert


class RegistryDecoder(Decoder):
    def __init__(
        self, schema: StructType, lookup: Lookup, writer_of: WriterOf, *, indexes: bool, in_header: bool
    ) -> None:
        super().__init__(arrow_struct(schema))
        self.needs_headers = in_header
        self._lookup = lookup
        self._writer_of = writer_of
        self._indexes = indexes
        self._plans: dict[PlanKey, _Plan | str] = {}

    def decode(self, values: pa.BinaryArray, headers: pa.Array | None = None) -> Decoded:
        bad: list[tuple[int, str]] = []
        groups: dict[PlanKey, tuple[list[int], list[bytes]]] = defaultdict(lambda: ([], []))
        for at, value, header in _records(values, headers):
            try:
                frame = self._frame(value, header)
            except BadValue as error:
                bad.append((at, clip(str(error))))
                continue
            rows, payloads = groups[frame.key, frame.indexes]
            rows.append(at)
            payloads.append(value if self.needs_headers else value[frame.start :])
        good: list[int] = []
        pieces: list[pa.Array] = []
        for key, (rows, payloads) in groups.items():
            self._decode_group(key, rows, payloads, good, pieces, bad)
        return Decoded(_placed(pieces, good, len(values), self.arrow_type), None, sorted(bad))

    def parts(self, values: pa.BinaryArray, headers: pa.Array | None = None) -> Iterator[Decoded]:
        yield self.decode(values, headers)

    def _frame(self, value: bytes, header: bytes | None) -> Framed:
        if not self.needs_headers:
            return framed(value, indexes=self._indexes)
        if header is None:
            raise BadValue(f"the record has no header {HEADER}, which says its schema")
        return framed(header, indexes=self._indexes)

    def _decode_group(
        self,
        key: PlanKey,
        rows: list[int],
        payloads: list[bytes],
        good: list[int],
        pieces: list[pa.Array],
        bad: list[tuple[int, str]],
    ) -> None:
        try:
            plan = self._plan(key)
        except BadValue as error:
            bad += [(row, clip(str(error))) for row in rows]
            return
        decoded = plan.writer.decode(pa.array(payloads, pa.binary()))
        bad += [(rows[at], reason) for at, reason in decoded.bad]
        gone = {at for at, _ in decoded.bad}
        kept = [at for at in range(len(rows)) if at not in gone]
        found = decoded.values.take(pa.array(kept, pa.int64())) if gone else decoded.values
        for start, piece in self._converted(found, plan.convert, [rows[at] for at in kept], bad):
            pieces.append(piece)
            good += [rows[at] for at in kept[start : start + len(piece)]]

    def _converted(
        self, found: pa.StructArray, convert: Convert, rows: list[int], bad: list[tuple[int, str]]
    ) -> Iterator[tuple[int, pa.Array]]:
        """(first row, rows) of those that fit. If some do not, all are tried one by one."""
        try:
            yield 0, self._fitted(found, convert)
            return
        except BadValue as error:
            if len(found) == 1:
                bad.append((rows[0], clip(str(error))))
                return
        for at in range(len(found)):
            for _, piece in self._converted(found.slice(at, 1), convert, rows[at : at + 1], bad):
                yield at, piece

    def _fitted(self, found: pa.StructArray, convert: Convert) -> pa.Array:
        made = convert(found)
        check_promises(made, self.arrow_type)
        return made

    def _plan(self, key: PlanKey) -> _Plan:
        """BadValue if no record of this schema can be read."""
        plan = self._plans.get(key)
        if plan is None:
            try:
                writer = self._writer_of(self._lookup(key[0]), key[1])
                plan = _Plan(writer, fit(writer.arrow_type, self.arrow_type, missing_is_null=True))
            except (PayloadError, BadValue) as error:
                plan = f"schema {key[0]}: {error}"
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            self._plans[key] = plan
        if isinstance(plan, str):
            raise BadValue(plan)
        return plan


def _records(values: pa.BinaryArray, headers: pa.Array | None) -> Iterator[tuple[int, bytes, bytes | None]]:
    """Row, value and the header that names the schema; rows without a value are left out."""
    found = [None] * len(values) if headers is None else headers.to_pylist()
    for at, value in enumerate(values.to_pylist()):
        if value is not None:
            yield at, value, _schema_header(found[at])


def _schema_header(pairs: list[dict[str, Any]] | None) -> bytes | None:
    return next((pair["value"] for pair in pairs or () if pair["key"] == HEADER), None)


def _placed(pieces: list[pa.Array], rows: list[int], count: int, kind: pa.StructType) -> pa.StructArray:
    """The pieces in the order of their records; null for all others."""
    if not pieces:
        return pa.nulls(count, kind)
    whole = pa.concat_arrays(pieces) if len(pieces) > 1 else pieces[0]
    sources, missing = np.zeros(count, np.int64), np.ones(count, np.bool_)
    sources[rows] = np.arange(len(rows))
    missing[rows] = False
    return whole.take(pa.array(sources, mask=missing))
