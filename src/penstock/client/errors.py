"""The errors of the clients.

ClientError
 ├── Unreachable     a connection could not be made, broke, or timed out: has the address and the reason
 ├── Garbled         the answer is not Kafka's protocol; also a ProtocolViolation
 ├── Refused         a broker answered with an error code
 ├── Denied          a broker's HTTP API refused a request: `code` is the reason
 ├── LoginFailed     a broker wants a login, or does not accept this one
 ├── TlsFailed       no encrypted connection can be made: a certificate is not trusted, or one side speaks no TLS
 ├── CallFailed      the handler of a call has failed for good
 ├── PublishFailed   a message is not stored, or the client does not know whether it is
 ├── TransactionFailed   a transaction is not committed, or the client does not know whether it is
 │    └── ProducerFenced another client has taken over the transactional id
 ├── LeaseLost       this client no longer holds a job: it may come again, here or at another consumer
 ├── Closed          a closed client, queue or subscription was used
 └── OffsetGone      records that were asked for are no longer there, or not yet (wire/fetch.py)

`retriable` says whether another try can help. The code that gives up (wire/retry.py) adds to the message how often and
for how long it has tried.
"""

from typing import Literal

from penstock.client.retriable_codes import RETRIABLE_CODES, code_of, retry_for_ms
from penstock.errors import ErrorCode, PenstockError, ProtocolViolation

AUTHORIZATION_CODES = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
PERMISSION_ADVICE = (
    "an administrator can allow it (`penstock acls add`); `penstock acls check` says which rule decides"
)


def lacking(code: int, permission: str) -> str | None:
    """The detail of a refusal with this code, if it means that the user may not do this."""
    return f"this user has no {permission} permission" if code in AUTHORIZATION_CODES else None


class ClientError(PenstockError):
    """The root of all errors that clients raise."""

    retriable_by_default = False

    def __init__(self, message: str, *, retriable: bool | None = None) -> None:
        super().__init__(message)
        self.message = message
        self._retriable = self.retriable_by_default if retriable is None else retriable

    @property
    def retriable(self) -> bool:
        return self._retriable

    @property
    def retry_for_ms(self) -> int | None:
        """The longest time for which this problem is retried; None: as long as the settings say."""
        return None

    def add_effort(self, effort: str) -> None:
        """Adds to the message what was tried."""
        self.args = (f"{self.message} ({effort})",)

    def __reduce__(self) -> tuple[object, ...]:
        # Subclasses take other arguments than the message; a worker's errors travel between processes.
        return _restore, (type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        return str(self.args[0])


class Unreachable(ClientError):
    """A connection could not be made, broke, or was silent for too long."""

    retriable_by_default = True
    may_be_done = False
    """Of requests to the HTTP API: whether a node may have received it, and carried it out."""


class Garbled(ClientError, ProtocolViolation):
    """The peer does not speak Kafka's protocol, or violates it."""


class Refused(ClientError):
    """A broker answered with an error code."""

    def __init__(self, code: int, asked: str, detail: str | None = None) -> None:
        self.code: ErrorCode = code_of(code)
        self.is_final = False
        """Whether another try is useless although the code is retriable in general."""
        self.asked = asked
        name = self.code.name if self.code == code else f"error code {code}, unknown to this client"
        if self.code in AUTHORIZATION_CODES:
            detail = f"{detail}: {PERMISSION_ADVICE}" if detail else PERMISSION_ADVICE
        super().__init__(f"{asked}: {name}" + (f", {detail}" if detail else ""))

    @property
    def retriable(self) -> bool:
        return self.code in RETRIABLE_CODES and not self.is_final

    @property
    def retry_for_ms(self) -> int | None:
        return retry_for_ms(self.code)


class Denied(ClientError):
    """A broker's HTTP API refused a request."""

    def __init__(self, code: str, message: str, *, retriable: bool = False) -> None:
        super().__init__(f"{message} ({code})" if message else code, retriable=retriable)
        self.code = code


LoginProblem = Literal["refused", "no mechanism", "not wanted", "wanted"]
TlsProblem = Literal["untrusted", "not spoken", "wanted", "own certificate", "files", "other"]


class LoginFailed(ClientError):
    """A broker wants a login, or does not accept the one that it got. Another try would end in the same way."""

    def __init__(
        self,
        message: str,
        *,
        problem: LoginProblem = "refused",
        detail: str = "",
        retriable: bool | None = None,
    ) -> None:
        """`problem` and `detail` (the broker's words, or its mechanisms) are for programs that give advice of their
        own: the message names arguments of Python."""
        super().__init__(message, retriable=retriable)
        self.problem = problem
        self.detail = detail


class TlsFailed(ClientError):
    """No encrypted connection can be made: a certificate is not trusted, or cannot be read, or one side has no TLS."""

    def __init__(self, message: str, *, problem: TlsProblem = "other", detail: str = "") -> None:
        """`problem` and `detail` (OpenSSL's words): as those of LoginFailed."""
        super().__init__(message)
        self.problem = problem
        self.detail = detail


class PublishFailed(ClientError):
    """A message was not acknowledged. With a message id it can be published again without being stored twice."""

    kafka_code: int | None = None
    """The code of librdkafka, if it has refused the message or its topic; negative codes are its own."""


TransactionOutcome = Literal["aborted", "unknown"]


class TransactionFailed(ClientError):
    """A transaction was not committed. `outcome` is "aborted": nothing of it will be visible, and its jobs come again.
    Or "unknown": the client asked for the commit and got no answer, so it may be committed or aborted as a whole."""

    def __init__(self, message: str, *, outcome: TransactionOutcome, retriable: bool | None = None) -> None:
        super().__init__(message, retriable=retriable)
        self.outcome = outcome


class ProducerFenced(TransactionFailed):
    """Another client has taken over the transactional id: this one must not use it any more."""


class CallFailed(ClientError):
    """The handler of a call has failed for good: has the type and the text of its exception."""


class LeaseLost(ClientError):
    """The broker did not accept an ack, or the client does not know whether it did. If it did not, another consumer has
    the job or will get it."""


class Closed(ClientError):
    """A closed client, queue or subscription was used."""


def _restore(cls: type[ClientError], args: tuple[object, ...], state: dict[str, object]) -> ClientError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error
