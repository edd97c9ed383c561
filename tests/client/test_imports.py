"""A client is a client: whoever imports it does not get a broker, nor an event loop."""

import subprocess
import sys

import pytest

import penstock.client

ROOMS = ("batch", "client", "kafka.wire", "types", "errors", "version")
ALLOWED = tuple(f"penstock.{room}" for room in ROOMS)


def test_the_client_loads_no_broker_and_no_event_loop() -> None:
    script = "import sys, penstock.client; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "penstock.client" in loaded
    ours = [name for name in loaded if name.startswith("penstock.") and name != "penstock.kafka"]
    assert [name for name in ours if not name.startswith(ALLOWED)] == []
    assert not {"asyncio", "uvloop", "confluent_kafka"} & set(loaded)


def test_what_is_for_people_is_there_by_name() -> None:
    for name in penstock.client.__all__:
        found = getattr(penstock.client, name)
        assert name.isupper() or found.__name__ == name
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = penstock.client.Nonsense
