"""Decides what callers may do, by the access rules in the metadata.

Every request asks, most of them the same as the one before. So decisions are remembered, together with the authorizer
that made them: it is another object after every change of rules, and then all of them are forgotten.

A permission is also lost while something goes on: a long poll, a push subscription, a worker's connection. Such work
registers with `watch`, and is called after each change of rules or users, to check again.
"""

from collections.abc import Callable, Iterable

from penstock.cluster import ClusterState
from penstock.node.parts import Part, TopicChanges
from penstock.security.authorizer import Authorizer
from penstock.types import BROKER_PRINCIPAL, Caller, Operation, ResourceType

MAX_REMEMBERED = 100_000
"""Decisions, about 300 bytes each. A client that asks for more names makes the node decide again, some 5 µs each."""

_Key = tuple[str, tuple[str, ...], str, Operation, ResourceType, str]


class Access(Part):
    """One per node, on its event loop. Without `is_required`, everybody may do everything."""

    def __init__(self, state: ClusterState, *, is_required: bool, super_users: Iterable[str] = ()) -> None:
        self._state = state
        self.is_required = is_required
        self._super_users = frozenset({BROKER_PRINCIPAL, *super_users})
        self._rules: Authorizer = state.access.authorizer
        self._authorizer = self._rules.with_super_users(self._super_users)
        self._decisions: dict[_Key, bool] = {}
        self._seen = self._version()
        self._watchers: dict[Callable[[], None], None] = {}

    # --- decisions

    @property
    def authorizer(self) -> Authorizer:
        """The present rules, with the super users of this node."""
        if self._state.access.authorizer is not self._rules:
            self._rules = self._state.access.authorizer
            self._authorizer = self._rules.with_super_users(self._super_users)
            self._decisions = {}
        return self._authorizer

    def allows(self, caller: Caller, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether the caller may do this with the resource, which need not exist."""
        if not self.is_required:
            return True
        authorizer = self.authorizer
        key = (caller.principal, caller.groups, caller.host, operation, resource_type, name)
        decision = self._decisions.get(key)
        if decision is None:
            if len(self._decisions) >= MAX_REMEMBERED:
                self._decisions.clear()
            principals = (caller.principal, *caller.groups)
            decision = authorizer.allows(principals, caller.host, operation, resource_type, name)
            self._decisions[key] = decision
        return decision

    def allows_any(self, caller: Caller, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether the caller may do this with any resource of the type."""
        principals = (caller.principal, *caller.groups)
        return not self.is_required or self.authorizer.allows_any(
            principals, caller.host, operation, resource_type
        )

    # --- changes

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back after every change of access rules or users. Returns how to stop that; twice does no harm."""
        self._watchers[callback] = None
        return lambda: self._watchers.pop(callback, None)

    def metadata_changed(self, topics: TopicChanges) -> None:
        version = self._version()
        if version != self._seen:
            self._seen = version
            for callback in list(self._watchers):
                callback()

    def _version(self) -> int:
        return self._state.access.version
