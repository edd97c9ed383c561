"""Dead letters on carriers that have none themselves: a message that cannot be handled goes to the stream NAME.dlq.

The letter is a message with the bytes of the dead one as its value, whole, and the headers that Penstock's own dead
letters have; the WrappingCodec wraps it. So a handler for the stream NAME.dlq reads them like any other message.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from penstock.client.error_texts import error_text, error_type
from penstock.clique.clocks import wall_clock_ms
from penstock.clique.codecs import WrappingCodec
from penstock.clique.message import Message

SUFFIX: Final = ".dlq"

_codec: Final = WrappingCodec()


class DeadMessage(NamedTuple):
    """A message as it came, and why it cannot be handled."""

    stream: str
    data: bytes
    key: bytes | None
    headers: Mapping[str, str]
    """Those that the carrier had with the message."""
    attempts: int
    """How often its handler was called; 0: the message could not be read."""
    problem: Exception

    def encode(self, *, clique: str, worker: str) -> tuple[str, bytes]:
        """The stream of the letter, and its bytes."""
        facts = {
            "penstock-dead-reason": "rejected" if self.attempts else "undecodable",
            "penstock-dead-topic": self.stream,
            "penstock-dead-group": clique,
            "penstock-dead-deliveries": str(self.attempts),
            "penstock-dead-at": str(wall_clock_ms()),
            "penstock-dead-worker": worker,
            "penstock-dead-error-type": error_type(self.problem),
            "penstock-dead-error-text": error_text(self.problem),
        }
        pairs = tuple((name, text.encode()) for name, text in {**self.headers, **facts}.items())
        letter = Message(stream=f"{self.stream}{SUFFIX}", value=self.data, key=self.key, headers=pairs)
        return letter.stream, _codec.encode(letter)
