"""Frames of a broker for a session, and the decoded effects of a session."""

import json
from random import Random
from struct import pack
from typing import Any

from penstock.batch import Record, build_batch
from penstock.client.errors import ClientError
from penstock.client.received_record import ReceivedRecord
from penstock.client.session import Connect, Effect, Resolve, Send, Session

A, B = "http://a:8080", "http://b:8080"


class Promise:
    """Keeps its outcome."""

    def __init__(self) -> None:
        self.is_done = False
        self.error: ClientError | None = None

    def resolve(self, error: ClientError | None) -> None:
        assert not self.is_done
        self.is_done, self.error = True, error


class Half:
    """A random source that always returns the middle."""

    def uniform(self, low: float, high: float) -> float:
        return (low + high) / 2


def chance() -> Random:
    return Half()  # type: ignore[return-value]


def frame(kind: str, **fields: Any) -> str:
    return json.dumps({"type": kind, **fields})


def batch(
    wanted: list[int],
    /,
    *,
    topic: str = "orders",
    partition: int = 0,
    held: list[int] | None = None,
    stamp: int = 1_000,
    **head: Any,
) -> bytes:
    """A binary frame with these offsets; the batch holds `held`, if that is more or less."""
    records = [Record(offset, stamp + offset, b"k", b"v%d" % offset) for offset in held or wanted]
    text = json.dumps({"topic": topic, "partition": partition, **head}).encode()
    return pack(">I", len(text)) + text + build_batch(records, base_offset=records[0].offset)


def jobs(*offsets: int, deliveries: int = 1, held: list[int] | None = None, **more: Any) -> bytes:
    return batch(list(offsets), held=held, acquired=[[one, one, deliveries] for one in offsets], **more)


def messages(*offsets: int, **more: Any) -> bytes:
    return batch(list(offsets), offsets=[[one, one] for one in offsets], **more)


def dialled(effects: list[Effect]) -> list[tuple[int, str]]:
    return [(effect.connection_id, effect.url) for effect in effects if isinstance(effect, Connect)]


def said(effects: list[Effect], kind: str | None = None) -> list[dict[str, Any]]:
    """Frames that are to be sent, decoded."""
    frames = [json.loads(effect.text) for effect in effects if isinstance(effect, Send)]
    return [one for one in frames if kind is None or one["type"] == kind]


def settle_all(effects: list[Effect]) -> None:
    """Resolves answers as a driver does."""
    for effect in effects:
        if isinstance(effect, Resolve):
            for promise in effect.promises:
                promise.resolve(effect.error)


def step(session: Session[Any], now: float) -> list[Effect]:
    effects = session.take_effects(now)
    settle_all(effects)
    return effects


def offsets(items: list[ReceivedRecord]) -> list[int]:
    return [item.offset for item in items]


def take_all(session: Session[Any]) -> list[Any]:
    return list(iter(session.take, None))
