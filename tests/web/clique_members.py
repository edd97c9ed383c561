"""Members of cliques over HTTP, for tests: they send heartbeats when the test says so."""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from uuid import uuid4

import httpx
import msgspec

from penstock.ring import HeartbeatReply, Table, slot_of
from penstock.ring.member import MemberCore
from tests.web.workers import Worker, working

LEASE_MS = 30_000
"""Longer than any test takes: a busy machine must not end it."""
SHORT_LEASE_MS = 12_000
"""For members that are to expire, after they have done a few things: a busy machine must not end it before."""
PATIENCE_SECONDS = 60.0


def now_ms() -> float:
    return time.monotonic() * 1000


class CliqueMember:
    """A worker whose callbacks finish at once."""

    def __init__(
        self,
        http: httpx.Client,
        clique: str,
        worker: str,
        *streams: str,
        lease_ms: int = LEASE_MS,
    ) -> None:
        self.http = http
        self.clique = clique
        self.worker = worker
        self.streams = streams
        self.core = MemberCore(
            worker=worker,
            new_member_id=lambda: uuid4().hex,
            now_ms=now_ms(),
            lease_ms=lease_ms,
            streams=streams,
        )

    @property
    def table(self) -> Table:
        assert self.core.table is not None
        return self.core.table

    @property
    def epoch(self) -> int:
        return self.core.epoch

    @property
    def claim(self) -> dict[str, Any]:
        """For the first frame of its connections."""
        return {"worker": self.worker, "member_id": self.core.member_id, "epoch": self.epoch}

    def send(self, wait_ms: int = 0, **changes: Any) -> httpx.Response:
        """One heartbeat; `changes` are fields that the worker itself would not send."""
        heartbeat = msgspec.to_builtins(self.core.heartbeat(now_ms()))
        path = f"/v1/cliques/{self.clique}/members/{heartbeat.pop('worker')}"
        return self.http.put(path, json={**heartbeat, "wait_ms": wait_ms, **changes})

    def heartbeat(self, wait_ms: int = 0, **changes: Any) -> HeartbeatReply:
        """One heartbeat, and what the worker does because of its reply."""
        response = self.send(wait_ms, **changes)
        assert response.status_code == 200, response.text
        reply = msgspec.json.decode(response.content, type=HeartbeatReply)
        if reply.table is not None:
            reply.table.check()
        self.core.replied(reply, now_ms())
        self.work()
        return reply

    def work(self) -> None:
        """Acquires the slots that it is granted, and lets go of those where nothing runs."""
        self.core.released(self.core.take_releasable(), now_ms())
        self.core.acquired(self.core.take_acquired())

    def join(self) -> "CliqueMember":
        while not self.core.is_member:
            self.heartbeat()
        return self

    def leave(self) -> None:
        self.core.leave(now_ms())
        while not self.core.has_left:
            self.heartbeat()

    def owns(self, key: str) -> bool:
        return self.core.may_start(slot_of(key.encode()), now_ms()) is not None

    def keys(self, count: int) -> list[str]:
        """Keys whose slots it owns."""
        return list(itertools.islice(self._keys(), count))

    def _keys(self) -> Iterator[str]:
        return (key for number in itertools.count() if self.owns(key := f"key-{number}"))

    def working(
        self, http_url: str, *, epoch: int | None = None, **more: Any
    ) -> AbstractContextManager[Worker]:
        """A connection for its messages. `epoch`: it claims to know this one."""
        claim = self.claim if epoch is None else {**self.claim, "epoch": epoch}
        return working(http_url, self.clique, *self.streams, clique=claim, **more)

    def start(self, jobs: list[dict[str, Any]]) -> None:
        """Handlers of these jobs run."""
        for job in jobs:
            assert self.core.start(slot_of(job["key"].encode()), now_ms()) is not None

    def finish(self, jobs: list[dict[str, Any]]) -> None:
        """They have ended, and their jobs are settled."""
        for job in jobs:
            self.core.finish(slot_of(job["key"].encode()))
        self.work()

    def revoked(self, key: str) -> bool:
        return slot_of(key.encode()) in self.table.revoked_from(self.core.member_id)


def settled(*members: CliqueMember) -> None:
    """Heartbeats in turn until nothing changes any more."""
    while True:
        before = [member.epoch for member in members]
        for member in members:
            member.heartbeat()
        if before == [member.epoch for member in members] and len(set(before)) == 1:
            return


def heartbeat_until(member: CliqueMember, is_enough: Callable[[CliqueMember], bool]) -> None:
    """Heartbeats, each held back until there is news for the member."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_enough(member):
        assert time.monotonic() < deadline, f"{member.worker} waited in vain"
        member.heartbeat(wait_ms=100)


def publish_keys(http: httpx.Client, topic: str, *keys: str, partition: int | None = None) -> None:
    """One record for each key; its value is the key and how many of it there are."""
    counts: Counter[str] = Counter()
    records: list[dict[str, Any]] = []
    for key in keys:
        counts[key] += 1
        record: dict[str, Any] = {"key": key, "value": [key, counts[key]]}
        records.append(record if partition is None else {**record, "partition": partition})
    http.post(f"/v1/topics/{topic}/records", json={"records": records}).raise_for_status()


def keys_of(jobs: list[dict[str, Any]]) -> list[str]:
    return [job["key"] for job in jobs]


def errors(answers: dict[int, dict[str, Any]]) -> list[str]:
    return [answer["error"]["code"] for answer in answers.values() if "error" in answer]


def is_served_nothing(worker: Worker) -> bool:
    """Whether it has no jobs by the time of its next answer."""
    worker.say(type="ping")
    worker.hear("pong")
    return worker.unheard("jobs") == 0
