"""Messages as handlers get them, and the slots that their keys belong to."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from penstock.ring.slots import SLOTS, slot_of

MessageHeaders = tuple[tuple[str, bytes | None], ...]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a stream. Codecs make it from bytes, and bytes from it."""

    stream: str
    """The stream that it was published to: on Penstock a topic, on NATS a subject."""
    value: bytes | None
    """The value that was published; `text()` and `json()` decode it. Only records of Kafka have None."""
    key: bytes | None = None
    """The key that it was published with. Messages of one key have one owner; those without a key have any."""
    headers: MessageHeaders = ()
    """In the order in which they were published; a name may come more than once."""
    attempt: int = 1
    """How often a handler has been called with it, this time included, as far as the carrier counts."""

    def header(self, name: str) -> bytes | None:
        """The last header of this name, or None."""
        return dict(self.headers).get(name)

    def text(self) -> str:
        """The value decoded as UTF-8; "" if there is no value."""
        return (self.value or b"").decode()

    def json(self) -> Any:
        """The value parsed as JSON; None if there is no value. Raises ValueError if it is not JSON."""
        return json.loads(self.value or b"null")

    def __repr__(self) -> str:
        return f"<Message of {self.stream}, key {self.key!r:.80}, {len(self.value or b'')} bytes>"


class Slot(msgspec.Struct, frozen=True):
    """The slot of a message's key, as a handler gets it. int(slot) is its number."""

    number: int
    """0 to 4095."""
    epoch: int
    """The fencing token: it grows each time the slot gets another owner. A database that stores the highest epoch that
    it has seen of a slot can refuse writes with a lower one, which come from a worker that was paused."""

    def __int__(self) -> int:
        return self.number


class Slots(Collection[int]):
    """The slots that a worker gets or gives up: a collection of numbers. `epochs` has the fencing token of each."""

    __slots__ = ("epochs", "lost")

    def __init__(self, epochs: Mapping[int, int], *, lost: bool = False) -> None:
        self.epochs: Final = dict(sorted(epochs.items()))
        self.lost: Final = lost
        """In `on_release`: the lease has ended, or another worker owns the slots already. This worker
        must drop its state of them and not save it: the next owner may have changed it since."""

    def has_key(self, key: bytes) -> bool:
        """Whether messages of this key belong to these slots."""
        return slot_of(key) in self.epochs

    def keys(self, keys: Iterable[bytes]) -> list[bytes]:
        """Those of the keys that belong to these slots."""
        return [key for key in keys if slot_of(key) in self.epochs]

    def __contains__(self, slot: object) -> bool:
        return slot in self.epochs

    def __iter__(self) -> Iterator[int]:
        return iter(self.epochs)

    def __len__(self) -> int:
        return len(self.epochs)

    def __repr__(self) -> str:
        return f"<{len(self)} of {SLOTS} slots{', lost' if self.lost else ''}>"
