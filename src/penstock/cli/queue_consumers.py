"""The consumers of queues, for `penstock groups`: Kafka's protocol knows only those that are members of a share group,
so the HTTP API is asked."""

from penstock.cli.connection import Connection
from penstock.cli.http_api import Facts, QueuesApi, find_urls
from penstock.cli.output import note
from penstock.cli.problem import Problem


def counts(connection: Connection) -> dict[str, int]:
    """How many consumers each queue has; a note instead if no HTTP port answers."""
    try:
        return {row["queue"]: row["consumers"] for row in _api(connection).get()["queues"]}
    except Problem as trouble:
        note(f"the consumers of share groups are not known: {trouble.message}")
        return {}


def listed(connection: Connection, queue: str) -> list[Facts]:
    found: list[Facts] = _api(connection).get(queue)["consumers"]
    return found


def _api(connection: Connection) -> QueuesApi:
    return QueuesApi(lambda: find_urls(connection))
