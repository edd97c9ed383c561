"""The errors of cliques.

ClientError (penstock.client.errors)
 └── CliqueError             a clique cannot be made, joined or used as asked: the message says why, and what to do
      ├── TooWeak            a carrier cannot give the guarantee that was asked for
      ├── MissingExtra       a carrier needs a package that is not installed
      ├── OverLimit          a message, key, name or number is above a limit (limits.py)
      ├── Undecodable        the bytes of a message are not what its codec expects
      └── Closed             the clique was closed; also penstock.client.errors.Closed

`request` raises CallFailed (penstock.client.errors) if the responder has failed, and TimeoutError.
"""

from penstock.client import errors
from penstock.client.errors import ClientError


class CliqueError(ClientError):
    """A clique cannot be made, joined or used as asked."""


class TooWeak(CliqueError):
    """The carrier cannot give the guarantee that was asked for."""


class MissingExtra(CliqueError):
    """The carrier needs a package that is not installed."""


class OverLimit(CliqueError):
    """Something is above one of the limits of penstock.clique.limits."""


class Undecodable(CliqueError):
    """The bytes of a message are not what its codec expects."""


class Closed(CliqueError, errors.Closed):
    """The clique was closed, or has not been started."""
