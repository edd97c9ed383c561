"""The error of a login that fails."""

from penstock.errors import PenstockError

INVALID_CREDENTIALS = "invalid credentials"
"""All that a client is told when its user, its password or its token is not accepted."""


class AuthenticationError(PenstockError):
    """A peer's message or its credentials are not accepted.

    `reason` is for the log and never contains a secret. `message` is for the peer: it is the same for an unknown user
    and for a wrong password, and tells more only about messages that are not the protocol.
    """

    def __init__(self, reason: str, message: str = INVALID_CREDENTIALS) -> None:
        super().__init__(reason)
        self.reason = reason
        self.message = message


class MalformedMessage(AuthenticationError):
    """The peer's bytes are not the mechanism's. The peer may know why: that tells nothing about users."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, reason)


class UnknownKey(AuthenticationError):
    """A token names a key that the key set does not have. A key set that is fetched again may have it."""
