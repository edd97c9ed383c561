"""A client of another language as a process: one request is a line of JSON, and so is its answer.

    {"do": "connect", "client": "a", "settings": {"bootstrap": ..., "ca": ..., "keystore": ..., "mechanism": ..., "user": ..., "secret": ..., "protocol": ...}}
    {"do": "create", "client": "a", "topic": ...}             creates a topic
    {"do": "topics", "client": "a"}                           lists topics
    {"do": "produce", "client": "a", "topic": ..., "value": ...}
    {"do": "consume", "client": "a", "topic": ..., "group": ..., "count": ...}    reads from the beginning, as a group
                                                              with "protocol": "consumer" or "classic"
    {"do": "transact", "client": "a", "id": ..., "topics": [...], "value": ..., "commit": ...}
                                                              one transaction: the value to each topic; the id has one
                                                              producer. With "group" and "offset" also the group's offset
                                                              in the first topic: Java only, franz-go commits what a
                                                              member has read
    {"do": "transform", "client": "a", "id": ..., "topics": [source, results], "group": ...}
                                                              reads one topic as a group and writes each value to the
                                                              other one, in many transactions; is never answered
    {"do": "close", "client": "a"}

    {"ok": ...}    or    {"error": Kafka's name of the error, or the client's own, "message": ...}

A process has many clients, each with settings of its own, and they stay connected from request to request. `secret` is a
password or a token, `ca` a file that says whom to believe (without it there is no TLS), `keystore` a file with the client's
key and certificate, `protocol` that of groups: "consumer" is KIP-848's. Settings that are not needed are left out.
"""  # noqa: E501

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4


class Refused(Exception):
    """The client could not do it. The first argument is the error's name."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(name, message)
        self.name = name
        self.message = message


class Client:
    """One of the clients of a program."""

    def __init__(self, program: "Program", name: str) -> None:
        self._program = program
        self._name = name

    def create(self, topic: str) -> None:
        self._ask("create", topic=topic)

    def topics(self) -> list[str]:
        listed: list[str] = self._ask("topics")
        return listed

    def produce(self, topic: str, value: str) -> int:
        return int(self._ask("produce", topic=topic, value=value))

    def consume(self, topic: str, group: str, count: int, **protocol: str) -> list[str]:
        """`protocol="consumer"`: with the protocol of KIP-848."""
        values: list[str] = self._ask("consume", topic=topic, group=group, count=count, **protocol)
        return values

    def transact(
        self, transactional_id: str, topics: list[str], value: str, *, commit: bool, **offset: str | int
    ) -> None:
        """`offset`: the arguments `group` and `offset`, or neither."""
        self._ask("transact", id=transactional_id, topics=topics, value=value, commit=commit, **offset)

    def transform(self, transactional_id: str, source: str, results: str, *, group: str) -> None:
        """Returns at once; the program goes on until it is killed."""
        self._program.tell(
            {
                "do": "transform",
                "client": self._name,
                "id": transactional_id,
                "topics": [source, results],
                "group": group,
            }
        )

    def close(self) -> None:
        self._ask("close")

    def _ask(self, verb: str, **more: object) -> Any:
        return self._program.ask({"do": verb, "client": self._name, **more})


class Program:
    """A running program. Its logs go to a file, which a failure shows the end of."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def connect(self, **settings: str) -> Client:
        name = uuid4().hex
        self.ask({"do": "connect", "client": name, "settings": settings})
        return Client(self, name)

    def tell(self, request: dict[str, object]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def ask(self, request: dict[str, object]) -> Any:
        assert self._process.stdout is not None
        self.tell(request)
        line = self._process.stdout.readline()
        assert line, f"the program ended:\n{self._log.read_text()[-4000:]}"
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"], answer["message"])
        return answer["ok"]

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        if error is not None:
            sys.stdout.write(f"--- {self._log.name}\n{self._log.read_text()[-4000:]}")
