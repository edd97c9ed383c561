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


def listed(connection: Connection, queue: str) -> Facts:
    """The consumers of a queue, and whether there are more than are listed."""
    found = _api(connection).get(queue)
    return {name: found[name] for name in ("consumers", "more_consumers")}


def _api(connection: Connection) -> QueuesApi:
    return QueuesApi(lambda: find_urls(connection), connection.settings)
