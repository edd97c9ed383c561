"""What a program pays for importing the package."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("statement", ["from penstock import Broker", "import penstock.security"])
def test_cryptography_is_loaded_when_a_token_is_verified_and_not_before(statement) -> None:
    script = f"{statement}; import sys; print([m for m in ('jwt', 'cryptography') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
