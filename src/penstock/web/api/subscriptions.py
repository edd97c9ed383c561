"""Subscriptions: list, describe, delete. `web.push` pushes their messages.

A subscription is stored at the coordinator of the group that has its name. Lag counts the messages that are not acked:
from its offset, or from the earliest offset if that is later, to the latest one, without those in `done`.
"""

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.errors import ErrorCode, KafkaError
from penstock.kafka.handlers.inner_client import InnerClient
from penstock.node import Node
from penstock.node.calls import rows_of_each
from penstock.node.calls.messages.subscriptions import PositionDescription, SubscriptionDescription
from penstock.types import Caller, ResourceType, TopicPartition
from penstock.web.api.offset_ranges import find_ranges
from penstock.web.api.problems import Problem, refused
from penstock.web.api.routing import Call, NoParams

SubscriptionName = Annotated[
    str, Meta(min_length=1, max_length=249, description="A subscription's name, as its subscribers send it.")
]
Ranges = dict[TopicPartition, tuple[int, int]]
"""First and last offsets of partitions whose leaders answer."""


class SubscriptionParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    subscription: SubscriptionName


class ForgetParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`force`: also while a subscriber is attached, whose connection is then closed."""

    subscription: SubscriptionName
    force: bool = False


class SubscriptionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """`since_ms`: since when a subscriber is attached, or none is. `ttl_left_ms` is null while one is attached: the TTL
    does not run then. `lag` is the sum over the partitions whose lag is known, null if there is none."""

    subscription: str
    topics: list[str]
    coordinator: int
    attached: bool
    since_ms: int
    ttl_ms: int
    ttl_left_ms: int | None
    lag: int | None


class SubscriptionList(msgspec.Struct, frozen=True, kw_only=True):
    """`unanswered` are nodes that did not list the subscriptions that they coordinate."""

    subscriptions: list[SubscriptionSummary]
    unanswered: list[int]


class DoneRange(msgspec.Struct, frozen=True, kw_only=True):
    first: int
    last: int


class SubscriptionPlace(msgspec.Struct, frozen=True, kw_only=True):
    """All messages before `offset` are acked, and so are those in `done` (the first hundred ranges after it). `unacked`
    counts pushed messages. `latest_offset` and `lag` are null while the partition's leader does not answer."""

    topic: str
    partition: int
    offset: int
    done: list[DoneRange]
    unacked: int
    latest_offset: int | None
    lag: int | None


class SubscriptionFacts(SubscriptionSummary, frozen=True, kw_only=True):
    """`unacked` counts messages that were pushed to the attached subscriber, `deferred` those that are not due yet."""

    unacked: int
    deferred: int
    positions: list[SubscriptionPlace]


class SubscriptionsApi:
    """Operations on subscriptions."""

    def __init__(self, node: Node) -> None:
        self._node = node

    # --- queries

    async def list_subscriptions(self, call: Call[NoParams, None]) -> SubscriptionList:
        nodes = [one.node_id for one in self._node.view.brokers()]
        ranges: Ranges = {}
        rows, unanswered = await rows_of_each(nodes, lambda node: self._listed(call.client, node, ranges))
        names = (row.subscription for row in rows)
        visible = self._node.resources.visible(call.caller, ResourceType.GROUP, names)
        return SubscriptionList(
            subscriptions=sorted(
                (row for row in rows if row.subscription in visible), key=lambda row: row.subscription
            ),
            unanswered=unanswered,
        )

    async def _listed(self, client: InnerClient, node: int, ranges: Ranges) -> list[SubscriptionSummary]:
        """The subscriptions of one node, page by page: only the sums over their partitions stay in memory."""
        rows: list[SubscriptionSummary] = []
        after = ""
        while True:
            page = await self._node.subscriptions.browse(node, after, caller=client.caller)
            shown = [self._shown(client.caller, description) for description in page.descriptions]
            await self._find(client, shown, ranges)
            now_ms = self._node.clock.wall_ms()
            rows += [_summary(description, ranges, now_ms) for description in shown]
            if page.is_last:
                return rows
            after = page.descriptions[-1].name

    def _shown(self, caller: Caller, description: SubscriptionDescription) -> SubscriptionDescription:
        """Without the topics that the caller may not describe. Messages that are not due are counted for all topics
        together, so a caller that may not describe all of them hears of none."""
        topics = self._node.resources.visible(caller, ResourceType.TOPIC, description.topics)
        if len(topics) == len(description.topics):
            return description
        return msgspec.structs.replace(
            description,
            topics=sorted(topics),
            deferred=0,
            positions=[place for place in description.positions if place.topic in topics],
        )

    async def _find(
        self, client: InnerClient, descriptions: Iterable[SubscriptionDescription], ranges: Ranges
    ) -> None:
        """Adds the partitions that are not in `ranges` yet."""
        wanted: dict[str, dict[int, None]] = {}
        for description in descriptions:
            for place in description.positions:
                if _key(place) not in ranges:
                    wanted.setdefault(place.topic, {})[place.partition] = None
        ranges |= await find_ranges(client, wanted)

    async def describe_subscription(self, call: Call[SubscriptionParams, None]) -> SubscriptionFacts:
        name = call.params.subscription
        description = await self._node.subscriptions.look(name, caller=call.caller)
        if description is None:
            raise _unknown(name)
        description = self._shown(call.caller, description)
        ranges: Ranges = {}
        await self._find(call.client, [description], ranges)
        return SubscriptionFacts(
            **msgspec.structs.asdict(_summary(description, ranges, self._node.clock.wall_ms())),
            unacked=sum(place.unacked for place in description.positions),
            deferred=description.deferred,
            positions=[_position(place, ranges) for place in description.positions],
        )

    # --- changes

    async def delete_subscription(self, call: Call[ForgetParams, None]) -> None:
        name = call.params.subscription
        try:
            was_there = await self._node.subscriptions.forget(
                name, force=call.params.force, caller=call.caller
            )
        except KafkaError as trouble:
            if trouble.code != ErrorCode.NON_EMPTY_GROUP:
                raise
            message = f"{trouble.message}: stop it first, or send force=true to close its connection"
            raise refused(trouble.code, message, "subscription") from trouble
        if not was_there:
            raise _unknown(name)


def _unknown(name: str) -> Problem:
    message = f"there is no subscription {name!r}; GET /v1/subscriptions lists them"
    return Problem(404, "unknown_subscription", message, "subscription")


def _key(place: PositionDescription) -> TopicPartition:
    return TopicPartition(place.topic, place.partition)


def _summary(description: SubscriptionDescription, ranges: Ranges, now_ms: int) -> SubscriptionSummary:
    lags = [lag for place in description.positions if (lag := _lag(place, ranges)) is not None]
    return SubscriptionSummary(
        subscription=description.name,
        topics=description.topics,
        coordinator=description.coordinator,
        attached=description.is_attached,
        since_ms=description.since_ms,
        ttl_ms=description.ttl_ms,
        ttl_left_ms=None if description.expires_ms is None else max(0, description.expires_ms - now_ms),
        lag=sum(lags) if lags else None,
    )


def _position(place: PositionDescription, ranges: Ranges) -> SubscriptionPlace:
    _, latest = ranges.get(_key(place), (None, None))
    return SubscriptionPlace(
        topic=place.topic,
        partition=place.partition,
        offset=place.offset,
        done=[DoneRange(first=first, last=last) for first, last in place.done],
        unacked=place.unacked,
        latest_offset=latest,
        lag=_lag(place, ranges),
    )


def _lag(place: PositionDescription, ranges: Ranges) -> int | None:
    known = ranges.get(_key(place))
    if known is None:
        return None
    earliest, latest = known
    start = max(place.offset, earliest)
    done = sum(last + 1 - max(first, start) for first, last in place.done if last >= start)
    return max(0, latest - start - done - place.done_beyond)
