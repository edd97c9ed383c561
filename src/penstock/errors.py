"""Every error that Penstock raises, by the side that caused it, and the codes that Kafka clients know.

PenstockError
 ├── KafkaError          a client's mistake: answered with its code, one log line, nothing else
 │    ├── BatchError     a record batch that does not match its header
 │    ├── RefusedRecords a topic's rules refuse some records of a batch, and so the batch: names the records
 │    ├── NotExecuted    a node refused a request before it did anything for it
 │    └── Unanswered     another node was asked and did not answer
 ├── ProtocolViolation   a peer's bytes are not the protocol: its connection is closed
 ├── ConfigError         an impossible setting: names the field, the value and what was expected
 ├── StorageError        the disk refused: writes get KAFKA_STORAGE_ERROR, reads go on
 │    └── OutOfResources ... for now: nothing was done, and the same may succeed later
 │         ├── DiskFull          there is no space
 │         └── TooManyOpenFiles  the process may open no more files
 ├── CorruptLog          stored bytes are wrong: names file and position
 ├── UnknownFormat       a data folder written by another version of the format
 ├── DataFolderInUse     another process holds the data folder
 └── NotAdmitted         the cluster refuses this node, and waiting would not change that
      └── PromisesLost   ... because it lost its votes or metadata: it does not even ask

A bug inside Penstock is none of these: it raises a built-in exception and is never swallowed.
"""

from enum import IntEnum


class ErrorCode(IntEnum):
    """Kafka's error codes, by the names that its documentation gives them."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    UNKNOWN_TOPIC_ID = 100
    BROKER_ID_NOT_REGISTERED = 102
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    SHARE_SESSION_LIMIT_REACHED = 133


class PenstockError(Exception):
    """The root of all errors that Penstock raises on purpose."""


MAX_MESSAGE_CHARACTERS = 1_000
"""Messages quote names that a client made up. Kafka's strings hold 32,767 bytes, and people read the first line."""


class KafkaError(PenstockError):
    """A client's mistake, with the code that Kafka's clients understand and an explanation."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        if len(message) > MAX_MESSAGE_CHARACTERS:
            message = f"{message[: MAX_MESSAGE_CHARACTERS - 1]}…"
        super().__init__(message or code.name)
        self.code = code
        self.message = message or code.name


class BatchError(KafkaError):
    """A record batch does not match its header: too short, a wrong checksum, an impossible field."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.CORRUPT_MESSAGE) -> None:
        super().__init__(code, message)


class RefusedRecords(KafkaError):
    """A topic's rules refuse some records of a batch, and so the whole batch."""

    def __init__(self, code: ErrorCode, message: str, reasons: dict[int, str]) -> None:
        """`reasons`: why a record is refused, by its index in the batch."""
        super().__init__(code, message)
        self.reasons = reasons


class NotExecuted(KafkaError):
    """The request was refused before anything was done for it, so it may be sent again in any case."""


class Unanswered(KafkaError):
    """Another node was asked and did not answer. `may_be_done`: it may have carried out the request all the same."""

    def __init__(self, code: ErrorCode, message: str, *, may_be_done: bool) -> None:
        super().__init__(code, message)
        self.may_be_done = may_be_done


class ProtocolViolation(PenstockError):
    """The peer's bytes are not the protocol; the only answer is to close its connection."""


class ConfigError(PenstockError):
    """A setting that cannot be honoured."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(f"{field}={value!r}: expected {expected}")
        self.field = field
        self.value = value
        self.expected = expected


class StorageError(PenstockError):
    """The disk refused a write or a flush."""


class OutOfResources(StorageError):
    """The system has no more of something. Nothing was done, and the same may succeed later."""


class DiskFull(OutOfResources):
    """There is no space left; writes are refused until there is, reads go on."""


class TooManyOpenFiles(OutOfResources):
    """The process, or the system, has as many files and connections open as it may (`ulimit -n`)."""


class CorruptLog(PenstockError):
    """Bytes in the middle of a log are wrong. They are not skipped: the operator must decide."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path} at byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


class UnknownFormat(PenstockError):
    """The data folder has a format version that this Penstock does not know."""


class DataFolderInUse(PenstockError):
    """Another process holds the lock on the data folder."""


class NotAdmitted(PenstockError):
    """The cluster does not admit this node, and waiting would not change that; `hint` says what would."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.hint = hint


class PromisesLost(NotAdmitted):
    """The data folder of a node of a cluster lacks its votes or its metadata: it could vote twice in a term."""
