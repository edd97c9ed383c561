"""Ports that tests may listen on, and find free again after a restart."""

from penstock.cli.cluster_plan import free_port

__all__ = ["free_port", "free_ports"]


def free_ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]
