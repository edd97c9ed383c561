"""The connections of one client, by address: the bootstrap servers, and the brokers of the latest metadata.

A connection that breaks is forgotten; the next request to that broker opens a new one.
"""

import random
from collections.abc import Mapping

from penstock.client.errors import ClientError, LoginFailed, Refused, Unreachable
from penstock.client.wire.connection import Connection, M, expect
from penstock.client.wire.settings import ClientSettings, ServerAddress, parse_servers
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey, Message


class ConnectionPool:
    """The connections of one client, one per node, for one thread."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        servers = list(parse_servers(settings.bootstrap_servers))
        random.shuffle(servers)  # many tasks have the same list; this spreads them over the brokers
        self._bootstrap = servers
        self._nodes: dict[int, ServerAddress] = {}
        self._open: dict[ServerAddress, Connection] = {}

    def learn(self, nodes: Mapping[int, ServerAddress]) -> None:
        """Replaces the list of the cluster's brokers."""
        self._nodes = dict(nodes)

    def learn_one(self, node_id: int, address: ServerAddress) -> None:
        self._nodes[node_id] = address

    @property
    def node_ids(self) -> tuple[int, ...]:
        return tuple(sorted(self._nodes))

    def knows(self, node_id: int) -> bool:
        return node_id in self._nodes

    def connect(self, node_id: int) -> Connection:
        """The shared connection to a broker."""
        return self._connect(self._address_of(node_id))

    def lend(self, node_id: int) -> Connection:
        """A connection for the caller alone until it is given back: for callers that leave answers outstanding."""
        address = self._address_of(node_id)
        connection = self._open.pop(address, None)
        if connection is None or connection.closed:
            return Connection(address.host, address.port, self._settings)
        if connection.outstanding:
            self._open[address] = connection
            return Connection(address.host, address.port, self._settings)
        return connection

    def give_back(self, connection: Connection) -> None:
        """Closes a connection that has answers outstanding: another caller could not use it."""
        if connection.closed or connection.outstanding or connection.address in self._open:
            connection.close()
        else:
            self._open[connection.address] = connection

    def ask_any(self, api: ApiKey, message: Message, kind: type[M], *, at_least: int = 0) -> M:
        """The answer of the first broker that answers; each is tried once."""
        problems: list[ClientError] = []
        for address in self._candidates():
            try:
                connection = self._connect(address)
                version = connection.version_of(api, at_least=at_least)
                return expect(connection.call(api, message, version=version), kind)
            except ClientError as problem:
                # The others know the same users, and answer later after each failed login.
                if isinstance(problem, LoginFailed) and not problem.retriable:
                    raise
                problems.append(problem)
        raise _all_failed(problems)

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def _candidates(self) -> list[ServerAddress]:
        """Open connections first; then all other known brokers."""
        alive = [address for address, connection in self._open.items() if not connection.closed]
        return list(dict.fromkeys([*alive, *self._nodes.values(), *self._bootstrap]))

    def _connect(self, address: ServerAddress) -> Connection:
        connection = self._open.get(address)
        if connection is None or connection.closed:
            connection = self._open[address] = Connection(address.host, address.port, self._settings)
        return connection

    def _address_of(self, node_id: int) -> ServerAddress:
        address = self._nodes.get(node_id)
        if address is None:
            raise Refused(
                ErrorCode.BROKER_NOT_AVAILABLE, f"broker {node_id}", "it is not in the cluster's metadata"
            )
        return address


def _all_failed(problems: list[ClientError]) -> ClientError:
    if len(problems) == 1 or not all(isinstance(problem, Unreachable) for problem in problems):
        return next((p for p in problems if not isinstance(p, Unreachable)), problems[0])
    reasons = "; ".join(map(str, problems))
    return Unreachable(f"no broker answers: {reasons}", retriable=any(one.retriable for one in problems))
