"""The commands of driver.py in the session that all tests share, for faults that the driver survives."""

from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.faults.driver import COMMANDS
from tests.spark.faults.processes import GATED, until


class SessionDriver:
    """Has settings and queries of its own."""

    def __init__(self, spark: SparkSession) -> None:
        self._session = spark.newSession()
        for name, value in GATED.items():
            self._session.conf.set(name, value)
        self._queries: dict[str, StreamingQuery] = {}

    def ask(self, command: str, **arguments: object) -> Any:
        """The answer to a command."""
        answer = COMMANDS[command](self._session, **arguments)
        self._queries |= {str(query.runId): query for query in self._session.streams.active}
        return answer

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Returns when a condition holds; fails as soon as a query has failed."""

        def holds() -> object:
            for query in self._queries.values():
                problem = query.exception()
                assert problem is None, str(problem)
            return condition()

        until(holds, what)

    def stop(self) -> None:
        for query in self._session.streams.active:
            query.stop()
