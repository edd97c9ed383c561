"""The stored form of a new password: one credential for each SCRAM mechanism, so that clients may use either."""

import secrets

from penstock.security.credentials import (
    DEFAULT_ITERATIONS,
    SALT_BYTES,
    SCRAM_MECHANISMS,
    ScramCredential,
    make_credential,
)


def new_credentials(password: str) -> dict[str, ScramCredential]:
    """The credentials by the SASL names of their mechanisms. Takes some milliseconds, by design."""
    return {
        mechanism.sasl_name: make_credential(
            password, secrets.token_bytes(SALT_BYTES), DEFAULT_ITERATIONS, mechanism
        )
        for mechanism in SCRAM_MECHANISMS
    }
