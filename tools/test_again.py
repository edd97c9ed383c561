"""Runs the tests that failed in the last run once more, one after the other: `make test-again`.

pytest's own --last-failed does not find tests that belong to a group: pytest-xdist notes them with the name of their
group behind an @.
"""

import json
import re
import sys
from pathlib import Path

import pytest

NOTED = Path(".pytest_cache/v/cache/lastfailed")
GROUP = re.compile(r"@[\w-]+$")


def failed_tests() -> list[str]:
    names = json.loads(NOTED.read_text()) if NOTED.exists() else {}
    return [GROUP.sub("", name) for name in names]


def main() -> int:
    tests = failed_tests()
    if not tests:
        print("The last run has no failed test on record.", file=sys.stderr)
        return 1
    return int(pytest.main(["-n", "0", "--maxfail", "1", *tests]))


if __name__ == "__main__":
    sys.exit(main())
