"""The effects that a durable state machine asks of its host, and the outbox that collects them.

A *durable core* is a state machine without a clock, file or socket, whose state is a partition of an internal topic:
coordinators of groups, the state of queues. Requests and the time come in, effects come out:

- `Reply(token, result)`: answer the request that came with this token. A result that is an exception is raised where
  the request waits.
- `Persist(id, records)`: append these records to the partition, in the order of the effects, and call
  `persisted(now_ms, id, ok)` once for each, in that order. Without records there is nothing to append: it is reported
  when everything before it is. With a producer the records belong to its open transaction: they are appended as a
  transactional batch, and count from the marker that commits the transaction.
- `Send(message)`: pass this message on, outside the log. The core decides when it was delivered: its host tells it by a
  method of the core's own.

`penstock.node.coordination.core_host` carries the effects out.
"""

from collections.abc import Callable, Sequence

import msgspec

from penstock.types import Producer

KeyValue = tuple[bytes, bytes | None]
"""A record of an internal topic; None deletes the key."""

WhenPersisted = Callable[[int, bool], None]
"""Called with the time and whether the write succeeded."""

PERSIST_RECORDS_MAX = 1000
"""Records per write: one request may change very many, and one write is one batch in memory."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer the request that came with this token. Each token is answered exactly once."""

    token: object
    result: object


class Persist(msgspec.Struct, frozen=True, kw_only=True):
    """Append these keys and values, then report `persisted(id)`."""

    id: int
    records: tuple[KeyValue, ...]
    producer: Producer | None = None
    """The records are part of this producer's transaction."""


class Send(msgspec.Struct, frozen=True, kw_only=True):
    """Pass this message on to other nodes. Only some cores send any; the core names the kind of its messages."""

    message: object


Effect = Reply | Persist | Send


class Outbox:
    """Effects that a core has decided on and not handed to its host yet, and writes that its host has not reported."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self._last_id = 0
        self._in_flight: dict[int, WhenPersisted] = {}
        self._reports: dict[int, bool] = {}
        """Writes that were reported before an older one was."""

    def reply(self, token: object, result: object) -> None:
        self._effects.append(Reply(token=token, result=result))

    def send(self, message: object) -> None:
        self._effects.append(Send(message=message))

    def persist(
        self, records: Sequence[KeyValue], then: WhenPersisted, producer: Producer | None = None
    ) -> None:
        """Requests a write, split into writes of bounded size; calls `then` once, with the outcome of all."""
        parts = [
            tuple(records[at : at + PERSIST_RECORDS_MAX])
            for at in range(0, len(records) or 1, PERSIST_RECORDS_MAX)
        ]
        outcomes: list[bool] = []

        def one_persisted(now_ms: int, ok: bool) -> None:
            outcomes.append(ok)
            if len(outcomes) == len(parts):
                then(now_ms, all(outcomes))

        for part in parts:
            self._last_id += 1
            self._in_flight[self._last_id] = then if len(parts) == 1 else one_persisted
            self._effects.append(Persist(id=self._last_id, records=part, producer=producer))

    def persisted(self, now_ms: int, persist_id: int, ok: bool) -> None:
        """Takes reports in any order and calls the `then` of each write in the order of the writes: changes in memory
        must happen in the order in which the log has them."""
        assert persist_id in self._in_flight
        self._reports[persist_id] = ok
        while self._in_flight and (first := next(iter(self._in_flight))) in self._reports:
            self._in_flight.pop(first)(now_ms, self._reports.pop(first))

    def take(self) -> list[Effect]:
        """The effects since the last call, in order."""
        effects, self._effects = self._effects, []
        return effects
