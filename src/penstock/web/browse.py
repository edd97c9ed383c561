"""Looking at the messages of a topic over WebSocket: GET /v1/browse, and then frames of JSON. docs/http-api.md has the
protocol.

A client asks once, gets the messages that its filter selects and how far the scan has come, and may stop it at any
moment. It is no consumer: nothing is stored, nothing is leased. Limits, beside those of every WebSocket
(`websocket_protocol`):

    messages that are not read  the client's credit; a scan waits for more of it, as it waits for the socket
    a scan's load               one step (`partition_scan`.STEP_BYTES) at a time, in a thread
    many scans                  MAX_SCANS on a node, MAX_SCANS_OF_CALLER of a caller; more are refused
    sorting by time             `browse_frames`.MAX_LIMIT messages are held, and HELD_BYTES of them; a scan with more
                                ends there, with the reason held_bytes
    a large message             `browse_frames`.WHOLE_BYTES_MAX; a frame of more than FRAME_BYTES counts in
                                limits.max_http_memory_bytes until the client has read it
    a tail                      TAILED_MAX partitions, and no whole messages
    a client that takes none    the scan ends after CREDIT_SECONDS
    a schema registry           `schema_values`
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from penstock.errors import KafkaError, PenstockError
from penstock.kafka.handlers.inner_client import InnerClient
from penstock.kafka.handlers.leader_offsets import EARLIEST, LATEST, NOT_FOUND, get_offsets
from penstock.node import Node
from penstock.types import ANONYMOUS_PRINCIPAL, NO_TIMESTAMP, Isolation, Operation
from penstock.web.api.bodies import reserve
from penstock.web.api.problems import Problem, as_problem, wrong
from penstock.web.api.routing import offloaded
from penstock.web.api.topics import find_topic
from penstock.web.browse_frames import FRAMES, AnyFrame, Browse, BrowsedMessage, More, Stop, shown_size
from penstock.web.callers import LOGIN_EXPIRED, LOGIN_EXPIRED_CLOSE, caller_of
from penstock.web.http_quotas import SocketQuota
from penstock.web.partition_scan import PartitionScanner, Step
from penstock.web.record_filter import compile_filter
from penstock.web.websocket_frames import (
    FrameReceiver,
    FrameSender,
    TooSlow,
    accept,
    check_may_read,
    has_ended,
    lost_permission,
    refuse_socket,
    until_one_ends,
    upgrade_required,
)
from penstock.web.websocket_protocol import text_frame

if TYPE_CHECKING:
    from penstock.web.schema_values import RegistryValues

PATH = "/v1/browse"
FRAMES_PER_SECOND = 100
"""A person clicks; credit for a thousand messages is one frame."""
MAX_SCANS = 32
MAX_SCANS_OF_CALLER = 8
"""A page has one scan, and people have some pages open. A login counts; without logins, the client's address does."""
CREDIT_SECONDS = 600.0
"""A tail that a person has paused may wait for so long; a browser that was put to sleep must not keep it for ever."""
HELD_BYTES = 8 * 1024 * 1024
FRAME_BYTES = 512 * 1024
"""Messages of a frame are this large together, or one message."""
TAILED_MAX = 200
"""Partitions that one tail watches, each with a request that waits."""
TAIL_WAIT_MS = 10_000
WINDOW_OFFSETS = 500
WINDOW_OFFSETS_MAX = 64_000
"""How far back a scan for the newest messages looks in each partition before it goes on with the next: in the first
round, and later, when it has found little. A batch is unpacked once for each window that it is in."""
WINDOW_GROWTH = 4
PROGRESS_SECONDS = 0.25
MESSAGES_PER_FRAME = 50
CLOSE_SECONDS = 2.0
CLOSE_CODES = {"end": 1000, "unknown_topic_or_partition": 4404, LOGIN_EXPIRED: LOGIN_EXPIRED_CLOSE}
MISTAKE = 4400


class BrowseEndpoint:
    """Scans of one node."""

    path = PATH

    def __init__(self, node: Node) -> None:
        self._node = node
        self._scans: Counter[str] = Counter()
        self._schemas = _registry_values(node)

    async def explain(self, request: Request) -> Response:
        return upgrade_required(PATH, "docs/http-api.md")

    async def serve(self, socket: WebSocket) -> None:
        refusal = refuse_socket(self._node, socket)
        if refusal is not None:
            await socket.send_denial_response(refusal)
            return
        caller = caller_of(socket)
        name = caller.principal if caller.principal != ANONYMOUS_PRINCIPAL else caller.host
        too_many = self._too_many(name)
        self._scans[name] += 1
        try:
            await accept(socket)
            with suppress(WebSocketDisconnect):
                await _Connection(self._node, socket, self._schemas).serve(too_many)
        finally:
            self._scans[name] -= 1
            self._scans += Counter()  # forgets names without a scan

    def _too_many(self, name: str) -> Problem | None:
        """A browser does not show its page the response to a refused connection, so this is told in a frame."""
        if self._scans[name] >= MAX_SCANS_OF_CALLER:
            message = (
                f"you have {MAX_SCANS_OF_CALLER} scans on this node: close a page with messages, or stop one"
            )
        elif self._scans.total() >= MAX_SCANS:
            message = f"this node has {MAX_SCANS} scans: stop one, or try again later"
        else:
            return None
        return Problem(503, "too_many_scans", message)


def _registry_values(node: Node) -> "RegistryValues | None":
    if not node.config.schema_registry.is_set:
        return None
    from penstock.web.schema_values import (
        RegistryValues,
    )  # few nodes have a registry, and this is slow to import

    return RegistryValues(node.config.schema_registry)


class _Credit:
    """How many messages the client still takes."""

    def __init__(self, left: int) -> None:
        self._left = left
        self._changed = asyncio.Event()

    def add(self, credit: int) -> None:
        self._left += credit
        self._changed.set()

    async def take(self, most: int) -> int:
        """At least one, at most so many. Problem if the client takes none for a long time."""
        while self._left <= 0:
            self._changed.clear()
            try:
                async with asyncio.timeout(CREDIT_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                message = f"the client has taken no message for {CREDIT_SECONDS:.0f} seconds: start it again"
                raise Problem(408, "no_credit", message) from None
        taken = min(most, self._left)
        self._left -= taken
        return taken


class _Connection:
    """One scan, from its first frame to its end."""

    def __init__(self, node: Node, socket: WebSocket, schemas: "RegistryValues | None") -> None:
        self._node = node
        self._socket = socket
        self._schemas = schemas
        self._frames: FrameReceiver[AnyFrame] = FrameReceiver(socket, FRAMES, FRAMES_PER_SECOND)
        self._sender = FrameSender(
            socket, node.config.limits.slow_drain_timeout_ms / 1000, SocketQuota(node, caller_of(socket))
        )

    async def serve(self, too_many: Problem | None) -> None:
        try:
            request = await self._frames.first(Browse, "not_browsing")
            if too_many is not None:
                raise too_many
            scan = self._scan(request)
        except Problem as problem:
            await self._end(problem.code, problem.message)
            return
        except KafkaError as refusal:
            await self._end(as_problem(refusal).code, refusal.message)
            return
        outcomes = await until_one_ends(
            scan.run(),
            self._listen(scan),
            lost_permission(self._node, self._socket, None, [request.topic]),
            self._socket.app.state.stopping.wait(),
        )
        await self._conclude(scan, outcomes)

    def _scan(self, request: Browse) -> "_Scan":
        caller = check_may_read(self._node, self._socket, None, [request.topic])
        topic = find_topic(self._node, caller, request.topic, Operation.READ)
        partitions = sorted(
            set(range(topic.partitions) if request.partitions is None else request.partitions)
        )
        if partitions[-1] >= topic.partitions:
            raise wrong("partitions", f"{partitions[-1]}: {topic.name} has {topic.partitions}, from 0 on")
        if request.start == "tail" and len(partitions) > TAILED_MAX:
            message = f"a tail of {len(partitions)} partitions: choose at most {TAILED_MAX} of them"
            raise wrong("partitions", message)
        if request.start == "tail" and request.whole:
            raise wrong("whole", "a tail has no whole messages: read those that are cut by their offset")
        client = InnerClient(self._node, caller)
        matches = compile_filter(request.filter)
        scanner = PartitionScanner(self._node, client, request.topic, matches, self._schemas, request.whole)
        return _Scan(request, partitions, client, scanner, self._sender)

    async def _listen(self, scan: "_Scan") -> None:
        """Returns when the client stops the scan; WebSocketDisconnect when it is gone."""
        while True:
            match await self._frames.next():
                case More(credit=credit):
                    scan.credit.add(credit)
                case Stop():
                    return
                case Browse():
                    raise Problem(400, "already_browsing", "one connection has one scan: open another one")

    async def _conclude(self, scan: "_Scan", outcomes: Sequence[object]) -> None:
        scanned, listened, lost, stopping = outcomes
        for outcome in (scanned, listened):
            if isinstance(outcome, WebSocketDisconnect | TooSlow):
                return
            if isinstance(outcome, Problem):
                await self._end(outcome.code, outcome.message)
                return
            if isinstance(outcome, PenstockError):
                await self._end(as_problem(outcome).code, str(outcome))
                return
            if isinstance(outcome, Exception):
                raise outcome
        if isinstance(lost, Problem):
            await self._end(lost.code, lost.message)
        elif not isinstance(stopping, asyncio.CancelledError):
            await self._end("unavailable", "the node is stopping; ask another one")
        else:
            reason = scanned if isinstance(scanned, str) else "stopped"
            await self._end("end", "", {**scan.progress(), "type": "end", "reason": reason})

    async def _end(self, code: str, message: str, notice: dict[str, object] | None = None) -> None:
        if has_ended(self._socket):
            return
        with suppress(TimeoutError, WebSocketDisconnect, TooSlow):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._sender.send(notice or {"type": "error", "code": code, "message": message})
                await self._socket.close(CLOSE_CODES.get(code, MISTAKE), code)


class _Scan:
    """Reads the partitions in turns, and sends what the filter selects."""

    def __init__(
        self,
        request: Browse,
        partitions: list[int],
        client: InnerClient,
        scanner: PartitionScanner,
        sender: FrameSender,
    ) -> None:
        self.credit = _Credit(request.credit)
        self._request = request
        self._partitions = partitions
        self._client = client
        self._scanner = scanner
        self._sender = sender
        self._total = self._scanned = self._found = self._unreadable = 0
        self._told_at = 0.0
        self._limit = request.limit
        """Messages to send; fewer than the client asked for, if so many are too large to be held."""

    def progress(self) -> dict[str, object]:
        return {
            "type": "progress",
            "scanned": self._scanned,
            "total": self._total,
            "found": self._found,
            "unreadable_batches": self._unreadable,
        }

    async def run(self) -> str:
        """Why it ended: the limit is reached, no more bytes are held, or all was scanned."""
        firsts = await self._offsets(EARLIEST)
        lasts = await self._offsets(LATEST)
        if self._request.start == "tail":
            await self._tail(lasts)
        if self._request.start == "newest":
            return await self._back(firsts, lasts)
        return await self._forward(await self._starts(firsts, lasts), lasts)

    @property
    def _at_limit(self) -> str:
        return "limit" if self._limit == self._request.limit else "held_bytes"

    async def _offsets(self, timestamp: int) -> dict[int, int]:
        return await get_offsets(
            self._client, self._request.topic, self._partitions, timestamp, Isolation.READ_UNCOMMITTED
        )

    async def _starts(self, firsts: dict[int, int], lasts: dict[int, int]) -> dict[int, int]:
        match self._request.start:
            case "timestamp":
                found = await self._offsets(self._request.timestamp_ms)
                return {one: lasts[one] if at == NOT_FOUND else at for one, at in found.items()}
            case "offset":
                return {one: max(first, self._request.offset) for one, first in firsts.items()}
        return firsts

    # --- from the oldest on

    async def _forward(self, starts: dict[int, int], ends: dict[int, int]) -> str:
        """Merges the partitions by time: the one that has come least far goes on, and a message is sent when all
        partitions have come as far as its time. A single partition is in the order of its offsets, so that a client can
        go on after the last message."""
        self._total = sum(max(0, ends[one] - starts[one]) for one in starts)
        places = {one: at for one, at in starts.items() if at < ends[one]}
        reached: dict[int, int] = dict.fromkeys(places, NO_TIMESTAMP)
        held: list[BrowsedMessage] = []
        is_single = len(starts) == 1
        while places:
            one = min(places, key=reached.__getitem__)
            step = await self._step(one, places[one], ends[one])
            places[one], reached[one] = step.next_offset, max(reached[one], step.last_timestamp_ms)
            if step.next_offset >= ends[one]:
                del places[one], reached[one]
            held = self._hold(step.found if is_single else sorted([*held, *step.found], key=_age))
            frontier = None if is_single else min(reached.values(), default=None)
            ready = [each for each in held if frontier is None or each.timestamp_ms <= frontier]
            await self._send(ready)
            held = held[len(ready) :]
            if self._found >= self._limit:
                return self._at_limit
        return "complete"

    async def _step(self, partition: int, at: int, end: int) -> Step:
        step = await self._scanner.step(partition, at, end)
        self._scanned += step.next_offset - at
        self._unreadable += step.unreadable
        await self._tell_progress()
        return step

    def _hold(self, messages: Sequence[BrowsedMessage]) -> list[BrowsedMessage]:
        """The first of these messages, as many as are still wanted. If they are too large together, fewer are wanted:
        what is left out would come behind them."""
        kept, size = list(messages[: self._limit - self._found]), 0
        for count, message in enumerate(kept):
            size += shown_size(message)
            if size > HELD_BYTES and count:
                self._limit = self._found + count
                return kept[:count]
        return kept

    # --- from the newest on

    async def _back(self, firsts: dict[int, int], lasts: dict[int, int]) -> str:
        """In rounds: a window of each partition, the newest messages of all windows first."""
        self._total = sum(lasts[one] - firsts[one] for one in firsts)
        tops = {one: last for one, last in lasts.items() if last > firsts[one]}
        window = WINDOW_OFFSETS
        while tops:
            best: list[BrowsedMessage] = []
            for one, top in list(tops.items()):
                bottom = max(firsts[one], top - window)
                async for found in self._window(one, bottom, top):
                    best = self._hold(sorted([*best, *found], key=_age, reverse=True))
                tops[one] = bottom
                if bottom <= firsts[one]:
                    del tops[one]
            await self._send(best)
            if self._found >= self._limit:
                return self._at_limit
            window = min(window * WINDOW_GROWTH, WINDOW_OFFSETS_MAX)
        return "complete"

    async def _window(self, partition: int, bottom: int, top: int) -> AsyncIterator[list[BrowsedMessage]]:
        while bottom < top:
            step = await self._step(partition, bottom, top)
            bottom = step.next_offset
            yield step.found

    # --- as they come

    async def _tail(self, lasts: dict[int, int]) -> None:
        """Never returns. A client without credit makes the partitions wait; nothing is skipped. The first progress says
        that it has begun: later messages are in it."""
        sending = asyncio.Lock()
        await self._sender.send(self.progress())

        async def follow(partition: int, at: int) -> None:
            while True:
                step = await self._scanner.step(partition, at, 2**63 - 1, wait_ms=TAIL_WAIT_MS)
                async with sending:
                    self._scanned += step.next_offset - at
                    self._unreadable += step.unreadable
                    await self._send(step.found)
                    await self._tell_progress()
                at = step.next_offset

        tasks = [asyncio.ensure_future(follow(partition, last)) for partition, last in lasts.items()]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    # --- frames

    async def _send(self, messages: Sequence[BrowsedMessage]) -> None:
        while messages:
            taken = await self.credit.take(min(MESSAGES_PER_FRAME, _in_a_frame(messages)))
            await self._sender.wait_for_room()
            await self._send_frame(messages[:taken])
            self._found += taken
            messages = messages[taken:]

    async def _send_frame(self, messages: Sequence[BrowsedMessage]) -> None:
        frame = await offloaded(sum(map(shown_size, messages)), _encoded, messages)
        if len(frame) <= FRAME_BYTES:
            await self._sender.send(frame)
            return
        reserved = self._client.node.http_memory.reserve()
        try:
            reserve(reserved, len(frame))
            await self._sender.send(frame)
            await self._sender.wait_for_room()
        finally:
            reserved.release()

    async def _tell_progress(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._told_at >= PROGRESS_SECONDS:
            self._told_at = now
            await self._sender.send(self.progress())


def _encoded(messages: Sequence[BrowsedMessage]) -> bytes:
    return text_frame(msgspec.json.encode({"type": "messages", "messages": messages}))


def _in_a_frame(messages: Sequence[BrowsedMessage]) -> int:
    """How many messages from the first on are no larger together than a frame; one at least."""
    size = 0
    for count, message in enumerate(messages[:MESSAGES_PER_FRAME]):
        size += shown_size(message)
        if size > FRAME_BYTES and count:
            return count
    return len(messages)


def _age(message: BrowsedMessage) -> tuple[int, int]:
    return message.timestamp_ms, message.offset
