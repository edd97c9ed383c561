"""Damaged values never crash the process, however Arrow's and Avro's readers treat them.

The damage is done in a process of its own, so that a crash is a failed test and not the end of all tests. The seed is
fixed: a failure repeats.
"""

import subprocess
import sys

import pytest

from . import damage

# Rounds of three values each. Damaged CSV is read one value at a time, which is slow.
COUNTS = {"csv": "500"}


@pytest.mark.parametrize("kind", sorted(damage.KINDS))
def test_damaged_values_are_good_or_bad_but_never_fatal(kind: str) -> None:
    command = [
        sys.executable,
        "-X",
        "faulthandler",
        "-m",
        damage.__name__,
        kind,
        "7",
        COUNTS.get(kind, "1500"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
