"""Shared by the demo's clique and the chapter that starts it."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple

CLIQUE: Final = "demo-totals"
PAYMENTS: Final = "demo-payments"
OWNERS: Final = "demo-owners"
LEASE_MS: Final = 2_500
"""Shorter than the default of 8 seconds: the demo waits for it."""


class Handled(NamedTuple):
    """One call of a handler, by the machine's monotonic clock."""

    customer: str
    number: int
    began_ns: int
    ended_ns: int

    def line(self) -> str:
        return " ".join(map(str, self))

    @classmethod
    def parse(cls, line: str) -> "Handled":
        customer, *numbers = line.split()
        return cls(customer, *map(int, numbers))


def faults(calls: Iterable[Handled]) -> tuple[int, int]:
    """How many calls began before another one of their customer had ended, and how many came out of order. A payment
    may come again after a crash, but not before an earlier one has come."""
    overlaps = disorders = 0
    by_customer: dict[str, list[Handled]] = defaultdict(list)
    for call in sorted(calls, key=lambda call: call.began_ns):
        by_customer[call.customer].append(call)
    for of_customer in by_customer.values():
        overlaps += sum(later.began_ns < earlier.ended_ns for earlier, later in pairwise(of_customer))
        numbers = list(dict.fromkeys(call.number for call in of_customer))
        disorders += sum(later < earlier for earlier, later in pairwise(numbers))
    return overlaps, disorders
