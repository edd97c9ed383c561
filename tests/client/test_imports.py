"""Importing the client loads neither the broker nor an event loop."""

import subprocess
import sys

import pytest

import penstock.client

ROOMS = ("batch", "client", "kafka.wire", "types", "errors", "version")
ALLOWED = tuple(f"penstock.{room}" for room in ROOMS)


def modules_loaded_by(package: str) -> list[str]:
    script = f"import sys, {package}; print(*sys.modules)"
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize("package", ["penstock.client", "penstock.client.wire"])
def test_a_client_loads_no_broker_and_no_event_loop(package: str) -> None:
    loaded = modules_loaded_by(package)
    assert package in loaded
    ours = [name for name in loaded if name.startswith("penstock.") and name != "penstock.kafka"]
    assert [name for name in ours if not name.startswith(ALLOWED)] == []
    assert not {"asyncio", "uvloop", "confluent_kafka", "websockets"} & set(loaded)


def test_the_client_for_batches_shares_only_errors_and_security_settings() -> None:
    loaded = modules_loaded_by("penstock.client.wire")
    ours = {name.split(".")[2] for name in loaded if name.startswith("penstock.client.")}
    assert ours <= {"errors", "retriable_codes", "security_settings", "wire"}


def test_the_client_for_batches_loads_tls_and_logins_when_they_are_used() -> None:
    loaded = modules_loaded_by("penstock.client.wire")
    assert not {"ssl", "penstock.security", "jwt", "cryptography"} & set(loaded)


def test_public_names_are_exported() -> None:
    for name in penstock.client.__all__:
        assert getattr(penstock.client, name).__name__ == name
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = penstock.client.Nonsense
