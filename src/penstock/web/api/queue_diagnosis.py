"""Why a queue does not move, in words: the rules by which a person reads its figures. `diagnose` is pure."""

from collections.abc import Iterator

import msgspec

from penstock.node import Node
from penstock.types import Caller
from penstock.web.api.dead_letters import QueueParams
from penstock.web.api.queue_shapes import QueueConsumerFacts, QueueFacts, ScheduledParams
from penstock.web.api.queues import Queues
from penstock.web.api.routing import Call


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """`moving`: messages were settled within the last minute. `stuck`: there are messages that are due, and none was.
    `reasons` say why, the most likely first, and what to do."""

    queue: str
    moving: bool
    stuck: bool
    summary: str
    reasons: list[str]


class QueueDiagnosis:
    """Reads the figures of queues."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._queues = Queues(node)

    async def diagnose_queue(self, call: Call[QueueParams, None]) -> Diagnosis:
        queue = call.params.queue
        facts = await self._queues.facts(call.caller, queue, letters=False)
        next_due_ms = await self._next_due_ms(call.caller, queue) if _only_deferred(facts) else None
        return diagnose(facts, now_ms=self._node.clock.wall_ms(), next_due_ms=next_due_ms)

    async def _next_due_ms(self, caller: Caller, queue: str) -> int | None:
        scheduled = await self._queues.scheduled(caller, ScheduledParams(queue=queue, max_records=1))
        return min((one.due_ms for one in scheduled.messages), default=None)


def diagnose(facts: QueueFacts, *, now_ms: int, next_due_ms: int | None = None) -> Diagnosis:
    """`next_due_ms`: when the first message is due, if none is now."""
    undone, rate = _sum(facts, "undone"), _rate(facts)
    reasons = [*_without_leader(facts), *(_reasons(facts, now_ms) if undone else ()), *facts.warnings]
    moving = rate > 0
    if undone == 0:
        summary = "It is empty: all messages are done."
    elif moving:
        summary = f"It moves: {rate:.1f} messages per second were settled in the last minute; {_are(undone)} not done."
    elif _only_deferred(facts):
        first = "" if next_due_ms is None else f"; the next one is due in {_duration(next_due_ms - now_ms)}"
        summary = f"Nothing is due{first}."
    else:
        due = _messages_are(undone - _sum(facts, "deferred"))
        summary = f"It does not move: {due} due and not done, and none was settled in the last minute."
    stuck = undone > 0 and not moving and not _only_deferred(facts)
    return Diagnosis(queue=facts.queue, moving=moving, stuck=stuck, summary=summary, reasons=reasons)


def _only_deferred(facts: QueueFacts) -> bool:
    """There are messages, and none of them is due."""
    return 0 < _sum(facts, "undone") <= _sum(facts, "deferred")


def _rate(facts: QueueFacts) -> float:
    return sum(one.rate or 0.0 for one in facts.partitions)


def _sum(facts: QueueFacts, name: str) -> int:
    return sum(getattr(one, name) or 0 for one in facts.partitions)


def _without_leader(facts: QueueFacts) -> Iterator[str]:
    lost = [f"{one.topic}-{one.partition}" for one in facts.partitions if one.leader is None]
    if lost:
        yield f"No node leads {_some(lost)}: their messages are not delivered until a node with a replica is back."


def _reasons(facts: QueueFacts, now_ms: int) -> Iterator[str]:
    yield from _ready(facts, now_ms)
    yield from _held(facts)
    if deferred := _sum(facts, "deferred"):
        yield (
            f"{_messages_are(deferred)} delayed, by the sender or before another try: see the "
            "scheduled messages."
        )
    if waiting := _sum(facts, "waiting"):
        yield (
            f"{_plural(waiting, 'message waits', 'messages wait')} for an earlier one of the same key, because the "
            "queue keeps the order of keys."
        )
    if dying := _sum(facts, "dying"):
        yield (
            f"{_messages_are(dying)} being copied to the dead letters. If that does not end, the dead-letter topic "
            "cannot be written to."
        )


def _ready(facts: QueueFacts, now_ms: int) -> Iterator[str]:
    available, consumers = _sum(facts, "available"), facts.consumers
    if not available:
        return
    ready = f"{_messages_are(available)} ready"
    if not consumers:
        yield f"{ready}, and no consumer asks for {_them(available)}: start a worker."
    elif _rate(facts) > 0:
        yield f"{ready} for {_plural(len(consumers), 'consumer', 'consumers')}: more workers would take them sooner."
    elif all(one.seen_ms is not None for one in consumers):  # an HTTP request that waits would have got them
        latest = max(consumers, key=lambda one: one.seen_ms or 0)
        held = f" and holds {latest.leases:,}" if latest.leases else ""
        asked = f"{_name(latest)} last asked {_duration(now_ms - (latest.seen_ms or 0))} ago{held}"
        yield (
            f"{ready}, and no consumer asks for {_them(available)}; {asked}: look at its log, or start another worker."
        )
    else:
        connected = [one for one in consumers if one.seen_ms is None]
        busiest = max(connected, key=lambda one: one.leases)
        takes = "is connected but takes" if len(connected) == 1 else "are connected but take"
        held = f"; {_name(busiest)} holds {busiest.leases:,}" if busiest.leases else ""
        yield (
            f"{ready}, and {_plural(len(connected), 'consumer', 'consumers')} {takes} none{held}: look at the workers' "
            "own logs, and at their credit."
        )


def _held(facts: QueueFacts) -> Iterator[str]:
    leased = _sum(facts, "leased")
    if facts.settings.exclusive and any(one.holder for one in facts.partitions):
        holders = sorted({one.holder for one in facts.partitions if one.holder})
        yield f"The queue is exclusive, and {_some(holders)} holds it: all other consumers wait."
    if leased:
        busiest = max(facts.consumers, key=lambda one: one.leases, default=None)
        held = f"; {_name(busiest)} holds {busiest.leases:,} of them" if busiest is not None else ""
        yield (
            f"{_messages_are(leased)} leased{held}. If their workers hang, the leases end "
            f"{facts.settings.lease_ms / 1000:g} seconds after they were last renewed, and others get the messages."
        )


def _name(consumer: QueueConsumerFacts) -> str:
    return consumer.name or consumer.id


def _duration(ms: int) -> str:
    seconds = max(1, round(ms / 1000))
    for unit_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= unit_s:
            return f"{seconds // unit_s} {unit}"
    return f"{seconds} s"


def _are(number: int) -> str:
    return _plural(number, "is", "are")


def _messages_are(number: int) -> str:
    return _plural(number, "message is", "messages are")


def _them(number: int) -> str:
    return "it" if number == 1 else "them"


def _plural(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _some(names: list[str], most: int = 5) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
