"""Why a queue does not move, in words: the rules by which a person reads its figures. `diagnose` is pure."""

from collections.abc import Iterator

import msgspec

from penstock.node import Node
from penstock.web.api.dead_letters import QueueParams
from penstock.web.api.queue_shapes import QueueFacts
from penstock.web.api.queues import Queues
from penstock.web.api.routing import Call


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """`moving`: messages were settled within the last minute. `stuck`: there are messages, and none was. `reasons` say
    why, the most likely first, and what to do."""

    queue: str
    moving: bool
    stuck: bool
    summary: str
    reasons: list[str]


class QueueDiagnosis:
    """Reads the figures of queues."""

    def __init__(self, node: Node) -> None:
        self._queues = Queues(node)

    async def diagnose_queue(self, call: Call[QueueParams, None]) -> Diagnosis:
        return diagnose(await self._queues.facts(call.caller, call.params.queue, letters=False))


def diagnose(facts: QueueFacts) -> Diagnosis:
    undone, rate = _sum(facts, "undone"), sum(one.rate or 0.0 for one in facts.partitions)
    reasons = [*_without_leader(facts), *(_reasons(facts) if undone else ()), *facts.warnings]
    moving = rate > 0
    stuck = undone > 0 and not moving
    if undone == 0:
        summary = "It is empty: all messages are done."
    elif moving:
        summary = f"It moves: {rate:.1f} messages per second were settled in the last minute; {undone:,} are not done."
    else:
        summary = (
            f"It does not move: {undone:,} messages are not done, and none was settled in the last minute."
        )
    return Diagnosis(queue=facts.queue, moving=moving, stuck=stuck, summary=summary, reasons=reasons)


def _sum(facts: QueueFacts, name: str) -> int:
    return sum(getattr(one, name) or 0 for one in facts.partitions)


def _without_leader(facts: QueueFacts) -> Iterator[str]:
    lost = [f"{one.topic}-{one.partition}" for one in facts.partitions if one.leader is None]
    if lost:
        yield f"No node leads {_some(lost)}: their messages are not delivered until a node with a replica is back."


def _reasons(facts: QueueFacts) -> Iterator[str]:
    available, leased = _sum(facts, "available"), _sum(facts, "leased")
    yield from _consumers(facts, available, leased)
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


def _consumers(facts: QueueFacts, available: int, leased: int) -> Iterator[str]:
    consumers = len(facts.consumers)
    if available and not consumers:
        yield f"{_messages_are(available)} ready, and no consumer asks for {_them(available)}: start a worker."
    elif available and not leased:
        yield (
            f"{_messages_are(available)} ready, and {_plural(consumers, 'consumer is', 'consumers are')} connected but "
            "take none: look at the workers' own logs, and at their credit."
        )
    if facts.settings.exclusive and any(one.holder for one in facts.partitions):
        holders = sorted({one.holder for one in facts.partitions if one.holder})
        yield f"The queue is exclusive, and {_some(holders)} holds it: all other consumers wait."
    if leased:
        busiest = max(facts.consumers, key=lambda one: one.leases, default=None)
        held = (
            f"; {busiest.name or busiest.id} holds {busiest.leases:,} of them" if busiest is not None else ""
        )
        yield (
            f"{_messages_are(leased)} leased{held}. If their workers hang, the leases end "
            f"{facts.settings.lease_ms / 1000:g} seconds after they were last renewed, and others get the messages."
        )


def _messages_are(number: int) -> str:
    return _plural(number, "message is", "messages are")


def _them(number: int) -> str:
    return "it" if number == 1 else "them"


def _plural(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _some(names: list[str], most: int = 5) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
