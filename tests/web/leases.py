"""Leases that end while a test waits for it, beside others that do not, however slow the machine is."""

import httpx

BRIEF_MS = 1_000
"""The shortest lease."""
LONG_MS = 3_600_000


def lease_from_now_on(http: httpx.Client, queue: str, lease_ms: int) -> None:
    """Later deliveries are leased for so long. Jobs that are leased now keep their leases."""
    http.patch(f"/v1/queues/{queue}", json={"lease_ms": lease_ms}).raise_for_status()


def leased_until_ms(http: httpx.Client, queue: str) -> int:
    """When the lease of its only job ends."""
    [seen] = http.get(f"/v1/queues/{queue}/peek").json()["messages"]
    return int(seen["until_ms"])
