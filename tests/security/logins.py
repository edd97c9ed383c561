"""A store of users for tests, and the two sides of a login."""

from penstock.security.credentials import Decoys, ScramMechanism, make_credential
from penstock.security.sasl import Verifiers

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
SALT = bytes(range(16))
ITERATIONS = 4096
DECOYS = Decoys(b"a secret of the cluster")
SERVER_NONCE = "server-nonce"


def store(*mechanisms, **passwords):
    """A lookup of credentials for these users."""
    known = {
        (name, mechanism): make_credential(password, SALT, ITERATIONS, mechanism)
        for name, password in passwords.items()
        for mechanism in mechanisms or (SHA_256, SHA_512)
    }
    return lambda name, mechanism: known.get((name, mechanism))


USERS = store(alice="pencil-1234", bob="eraser-1234")
VERIFIERS = Verifiers(USERS, DECOYS)
