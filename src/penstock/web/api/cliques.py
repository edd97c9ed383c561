"""Cliques: the heartbeats of their workers, and what people see of them.

A clique has a queue of the same name, whose order is `owner`: the first heartbeat creates its settings. The queue's
messages go over WebSocket (`clique_worker`).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from penstock.errors import ErrorCode, KafkaError
from penstock.kafka.handlers.inner_client import InnerClient
from penstock.kafka.handlers.leader_offsets import EARLIEST, LATEST, get_offsets
from penstock.node import Node
from penstock.node.calls import BROKER
from penstock.node.calls.messages.queues import QueueDescription
from penstock.node.queues.consumers import LISTED_MAX, MergedConsumer, shortened
from penstock.ring import SLOTS, HeartbeatReply, MemberDescription
from penstock.types import Caller, Isolation, Operation, ResourceType
from penstock.web.api.clique_shapes import (
    CliqueFacts,
    CliqueList,
    CliqueMemberFacts,
    CliqueParams,
    CliqueRow,
    CliqueStreamFacts,
    MemberParams,
    WorkerHeartbeat,
)
from penstock.web.api.dead_letters import HANDLED_QUEUE
from penstock.web.api.problems import Problem, refused, wrong
from penstock.web.api.queue_settings import QueueSettings
from penstock.web.api.routing import Call, NoParams

ORDER = "penstock.queue.order"
START = "share.auto.offset.reset"


class Cliques:
    """Operations on cliques."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._settings = QueueSettings(node)

    # --- workers

    async def send_heartbeat(self, call: Call[MemberParams, WorkerHeartbeat]) -> HeartbeatReply:
        clique, body = call.params.clique, call.body
        for stream in body.streams:
            self._node.resources.check(call.caller, Operation.READ, ResourceType.TOPIC, stream)
        await self._ensure_queue(clique, call.caller)
        heartbeat = body.heartbeat(call.params.worker)
        return await self._node.cliques.coordinators.heartbeat(
            clique, heartbeat, body.wait_ms, caller=call.caller
        )

    async def _ensure_queue(self, clique: str, caller: Caller) -> None:
        """The first heartbeat creates the settings of the clique's queue: the broker does it, because workers need no
        right to change configs, and the audit log names the worker's principal. Problem: another group has the name."""
        node = self._node
        if node.resources.queue_config(clique).owner_ordered:
            return
        if clique == HANDLED_QUEUE:
            raise wrong("clique", f"{HANDLED_QUEUE} is reserved for the broker: choose another name")
        configs = node.resources.group_configs(BROKER, clique, Operation.ALTER_CONFIGS)
        if ORDER in configs or await node.queues.overview.descriptions(clique, caller=BROKER):
            raise not_a_clique(clique, configs.get(ORDER, "none"))
        try:
            await node.queues.manager.begin(clique)
        except KafkaError as refusal:
            status = refused(refusal.code, refusal.message, "clique")
            if refusal.code == ErrorCode.POLICY_VIOLATION:
                status = Problem(409, "not_a_clique", refusal.message, "clique")
            raise status from None
        wanted = {ORDER: "owner"} if START in configs else {ORDER: "owner", START: "earliest"}
        await self._settings.set_configs(InnerClient(node, BROKER), clique, wanted)
        node.audit.changed(caller, "create_clique", ResourceType.GROUP.name.lower(), clique, None)

    # --- queries

    async def list_cliques(self, call: Call[NoParams, None]) -> CliqueList:
        found = {one.clique: one for one in await self._node.cliques.coordinators.list(caller=call.caller)}
        visible = self._node.resources.visible(call.caller, ResourceType.GROUP, found)
        return CliqueList(
            cliques=[
                CliqueRow(
                    clique=name,
                    epoch=found[name].epoch,
                    members=found[name].members,
                    handovers=found[name].handovers,
                    changed_ms=found[name].changed_ms,
                )
                for name in sorted(visible)
            ]
        )

    async def describe_clique(self, call: Call[CliqueParams, None]) -> CliqueFacts:
        clique = call.params.clique
        described = await self._node.cliques.coordinators.describe(clique, caller=call.caller)
        if described is None:
            raise Problem(404, "unknown_clique", f"there is no clique {clique!r}", "clique")
        report = await self._node.queues.overview.report(
            clique, caller=call.caller, counted=True, max_consumers=LISTED_MAX
        )
        in_flight = _in_flight(report.consumers_of(clique).listed)
        names = {stream for member in described.members for stream in member.streams}
        names |= {row.topic for row in report.descriptions}
        visible = self._node.resources.visible(call.caller, ResourceType.TOPIC, names)
        return CliqueFacts(
            clique=clique,
            epoch=described.epoch,
            changed_ms=described.changed_ms,
            slots=SLOTS,
            handovers=described.handovers,
            members=[_member(one, in_flight, visible) for one in described.members],
            streams=await self._streams(call.caller, clique, visible, report.descriptions),
        )

    async def _streams(
        self, caller: Caller, clique: str, visible: Collection[str], rows: Sequence[QueueDescription]
    ) -> list[CliqueStreamFacts]:
        """Of those that a worker handles, or on which the queue has begun, the ones that the caller may see."""
        config = self._node.resources.queue_config(clique)
        found = []
        for name in sorted(visible):
            mine = [row for row in rows if row.topic == name]
            # No worker has asked for its messages yet: all of them wait.
            has_begun = bool(mine) or config.auto_offset_reset != "earliest"
            waiting = None if has_begun else await self._count(caller, name)
            none = None if waiting is None else 0
            letters = config.dead_letter_topic_of(name)
            found.append(
                CliqueStreamFacts(
                    stream=name,
                    partitions=self._node.resources.partition_count(name),
                    undone=_sum(row.undone for row in mine) if has_begun else waiting,
                    available=_sum(row.available for row in mine) if has_begun else waiting,
                    leased=_sum(row.leased for row in mine) if has_begun else none,
                    deferred=_sum(row.deferred for row in mine) if has_begun else none,
                    dead_letter_topic=letters,
                    dead_letters=await self._count(caller, letters),
                )
            )
        return found

    async def _count(self, caller: Caller, name: str) -> int | None:
        """The records of a topic, none if it does not exist; None if the caller may not see it, or a leader does not
        answer."""
        if not self._node.resources.visible(caller, ResourceType.TOPIC, (name,)):
            return None
        client, partitions = (
            InnerClient(self._node, caller),
            range(self._node.resources.partition_count(name)),
        )
        try:
            starts = await get_offsets(client, name, partitions, EARLIEST, Isolation.READ_UNCOMMITTED)
            ends = await get_offsets(client, name, partitions, LATEST, Isolation.READ_UNCOMMITTED)
        except (KafkaError, Problem):
            return None
        return sum(ends[at] - starts[at] for at in partitions)


def not_a_clique(queue: str, order: str) -> Problem:
    message = (
        f"there is a queue {queue!r} with penstock.queue.order={order} already, and a clique needs a queue of its "
        "name with order=owner: choose another name for the clique, or delete the queue first"
    )
    return Problem(409, "not_a_clique", message, "clique")


def _in_flight(consumers: Iterable[MergedConsumer]) -> dict[str, Counter[str]]:
    """Messages that workers hold by stream, by their names as consumers of queues have them."""
    found: dict[str, Counter[str]] = {}
    for one in consumers:
        found.setdefault(one.name, Counter()).update(one.leases_by_topic)
    return found


def _member(
    one: MemberDescription, in_flight: dict[str, Counter[str]], visible: Collection[str]
) -> CliqueMemberFacts:
    held = in_flight.get(shortened(one.worker), Counter())
    return CliqueMemberFacts(
        worker=one.worker,
        member_id=one.member_id,
        since_ms=one.since_ms,
        lease_ms=one.lease_ms,
        lease_left_ms=one.lease_left_ms,
        slots=one.slots,
        share=round(one.slots / SLOTS, 4),
        revoking=one.revoking,
        overdue=one.overdue,
        leaving=one.leaving,
        streams=[stream for stream in one.streams if stream in visible],
        in_flight={topic: held[topic] for topic in sorted(held) if held[topic] and topic in visible},
    )


def _sum(numbers: Iterable[int | None]) -> int | None:
    """None if one of them is not known, or there are none."""
    known = list(numbers)
    return None if not known or None in known else sum(number or 0 for number in known)
