"""For all examples: the broker of --bootstrap HOST:PORT, or one inside this process."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from penstock import Broker


@contextmanager
def broker_or_start(description: str | None) -> Iterator[str]:
    """The address of a broker."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--bootstrap", metavar="HOST:PORT", help="a running broker; without it, the example starts one"
    )
    given = parser.parse_args().bootstrap
    if given:
        print(f"using the broker at {given}")
        yield given
        return
    with Broker() as broker:
        print(f"a broker runs in this process, at {broker.bootstrap_servers}")
        yield broker.bootstrap_servers


def fresh(name: str) -> str:
    """A name that no earlier run has used."""
    return f"{name}-{uuid4().hex[:8]}"
