"""What a client can run into.

ClientError
 ├── Unreachable     nobody answers there, or stopped answering: names the address and the reason
 ├── Garbled         what came back is not Kafka's protocol; also a ProtocolViolation
 ├── Refused         a broker answered with an error code
 ├── Denied          a broker's HTTP port said no: `code` is its word for why
 ├── PublishFailed   a message is not stored, or nobody knows whether it is
 ├── LeaseLost       a job is no longer this client's: it may come again, here or elsewhere
 ├── Closed          what was closed was used
 └── OffsetGone      records that were asked for are no longer there, or not yet (fetch.py)

`retriable` says whether trying again can help; what was tried, and for how long, is added to the message by whoever
gives up (retry.py).
"""

from penstock.client.retriable_codes import RETRIABLE_CODES, code_of, retry_for_ms
from penstock.errors import ErrorCode, PenstockError, ProtocolViolation


class ClientError(PenstockError):
    """The root of what a client raises."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    @property
    def retriable(self) -> bool:
        return False

    @property
    def retry_for_ms(self) -> int | None:
        """The longest time for which this problem is retried; None: as long as the settings say."""
        return None

    def tell_effort(self, effort: str) -> None:
        """Adds what was tried."""
        self.args = (f"{self.message} ({effort})",)

    def __reduce__(self) -> tuple[object, ...]:
        # Subclasses take other arguments than the message; a worker's errors travel between processes.
        return _restore, (type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        return str(self.args[0])


class Unreachable(ClientError):
    """A connection could not be made, broke, or was silent for too long."""

    def __init__(self, message: str, *, retriable: bool = True) -> None:
        super().__init__(message)
        self._retriable = retriable

    @property
    def retriable(self) -> bool:
        return self._retriable


class Garbled(ClientError, ProtocolViolation):
    """The peer does not speak Kafka's protocol, or not as it should."""


class Refused(ClientError):
    """A broker said no."""

    def __init__(self, code: int, asked: str, detail: str | None = None) -> None:
        self.code: ErrorCode = code_of(code)
        self.is_final = False
        """Whether the code, which may pass elsewhere, does not in answer to what was asked."""
        self.asked = asked
        name = self.code.name if self.code == code else f"error code {code}, unknown to this client"
        super().__init__(f"{asked}: {name}" + (f", {detail}" if detail else ""))

    @property
    def retriable(self) -> bool:
        return self.code in RETRIABLE_CODES and not self.is_final

    @property
    def retry_for_ms(self) -> int | None:
        return retry_for_ms(self.code)


class Denied(ClientError):
    """The web side of a broker said no."""

    def __init__(self, code: str, message: str, *, retriable: bool = False) -> None:
        super().__init__(f"{message} ({code})" if message else code)
        self.code = code
        self._retriable = retriable

    @property
    def retriable(self) -> bool:
        return self._retriable


class PublishFailed(ClientError):
    """A message was not acknowledged. With a message id it can be published again without being stored twice."""

    def __init__(self, message: str, *, retriable: bool = False) -> None:
        super().__init__(message)
        self._retriable = retriable

    @property
    def retriable(self) -> bool:
        return self._retriable


class LeaseLost(ClientError):
    """What was said of a job was not taken, or nobody knows whether it was. If it was not, another consumer will get
    the job, or has it."""


class Closed(ClientError):
    """Something was used after it was closed."""


def _restore(cls: type[ClientError], args: tuple[object, ...], state: dict[str, object]) -> ClientError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error
