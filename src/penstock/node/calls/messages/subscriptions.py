"""Requests to the coordinator of a subscription."""

import msgspec


class ListSubscriptions(msgspec.Struct, frozen=True, array_like=True):
    """The subscriptions that a node coordinates, by name, behind the name `after`."""

    after: str


class DescribeSubscription(msgspec.Struct, frozen=True, array_like=True):
    name: str


class DeleteSubscription(msgspec.Struct, frozen=True, array_like=True):
    """`is_forced`: also one with a subscriber attached, which is then disconnected."""

    name: str
    is_forced: bool


class PositionDescription(msgspec.Struct, frozen=True, array_like=True):
    """The stored progress of a subscription on one partition."""

    topic: str
    partition: int
    offset: int
    """The first that is not acked."""
    done: list[tuple[int, int]]
    """First and last of the acked ranges beyond it; the lowest ranges, if there are many."""
    done_beyond: int
    """How many are acked beyond these ranges."""
    unacked: int
    """Pushed to the attached subscriber, and not acked."""


class SubscriptionDescription(msgspec.Struct, frozen=True, array_like=True):
    name: str
    coordinator: int
    topics: list[str]
    is_attached: bool
    since_ms: int
    """When it was attached or detached last."""
    ttl_ms: int
    expires_ms: int | None
    """When it will be deleted; None while a subscriber is attached."""
    deferred: int
    """Messages that the attached subscriber waits for, because they are not due."""
    positions: list[PositionDescription]


class SubscriptionPage(msgspec.Struct, frozen=True, array_like=True):
    descriptions: list[SubscriptionDescription]
    is_last: bool
