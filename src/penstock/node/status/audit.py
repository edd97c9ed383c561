"""The audit log: who did what to which resource from where, as `audit.*` events of the status log.

    audit.login      a login by Kafka's SASL, or one over HTTP that failed
    audit.refused    a caller was refused by the access rules (`Resources`)
    audit.changed    a request that changes something, and its outcome: the Kafka APIs that name their `results` in the
                     registry, and all HTTP operations that are not GET and not `routine`, without dry runs
    audit.data       records were written or read: one event per caller, operation and resource in so many seconds, and
                     none by default (`audit_data_sample_ms`)

Callers choose what they ask for, and how often. So refusals and failed logins are limited for each caller: in a minute
the first MAX_EVENTS different ones become events, and an event of the next minute says how many more there were. What
nodes do by themselves is not audited. Facts are names, never values: no event has a password, token or config value.
"""

from collections import OrderedDict
from collections.abc import Callable

from penstock.types import BROKER_PRINCIPAL, NO_EVENTS, Caller, EventSink, Operation, ResourceType

PREFIX = "audit."
LOGIN, REFUSED, CHANGED, DATA = f"{PREFIX}login", f"{PREFIX}refused", f"{PREFIX}changed", f"{PREFIX}data"

WINDOW_SECONDS = 60.0
MAX_EVENTS = 20
"""Of one caller in a window."""
MAX_CALLERS = 10_000
"""Whose windows are remembered, about 1 KB each. A caller that is forgotten may cause MAX_EVENTS again."""
MAX_NAMES = 20
"""Resources of one request that get an event of their own; another one counts the rest."""
MAX_SAMPLED = 20_000
"""Callers, operations and resources whose last data event is remembered."""

ALLOWED, DENIED, FAILED = "allowed", "refused", "failed"


class _Window:
    """The events of one caller since `began`."""

    __slots__ = ("began", "left_out", "told")

    def __init__(self, began: float) -> None:
        self.began = began
        self.told: set[object] = set()
        self.left_out = 0


class CallerLimit:
    """Lets the first different events of each caller through, and counts the others."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._windows: OrderedDict[object, _Window] = OrderedDict()

    def admit(self, caller: object, what: object) -> int | None:
        """None: no event. Otherwise how many events were left out before this one."""
        window, left_out = self._windows.get(caller), 0
        if window is None or self._now() - window.began >= WINDOW_SECONDS:
            left_out = window.left_out if window is not None else 0
            window = self._windows[caller] = _Window(self._now())
            self._windows.move_to_end(caller)
            if len(self._windows) > MAX_CALLERS:
                self._windows.popitem(last=False)
        if what in window.told or len(window.told) >= MAX_EVENTS:
            window.left_out += 1
            return None
        window.told.add(what)
        return left_out


class Audit:
    """Reports to the status log. Lives on the event loop."""

    def __init__(self, events: EventSink, now: Callable[[], float], data_sample_ms: int = 0) -> None:
        self._events = events
        self._now = now
        self._limit = CallerLimit(now)
        self._sample_seconds = data_sample_ms / 1000
        self._sampled: OrderedDict[object, float] = OrderedDict()
        self.is_on = events is not NO_EVENTS
        self.samples = self.is_on and data_sample_ms > 0
        """Whether data operations are reported. They look at this first."""

    # --- logins

    def logged_in(self, principal: str, client: str, protocol: str, mechanism: str) -> None:
        self._events.tell(
            LOGIN,
            principal=principal,
            client=client,
            protocol=protocol,
            mechanism=mechanism or None,
            outcome=ALLOWED,
        )

    def login_failed(self, host: str, client: str, protocol: str, mechanism: str, reason: str) -> None:
        left_out = self._limit.admit(host, reason)
        if left_out is not None:
            self._events.tell(
                LOGIN,
                client=client,
                protocol=protocol,
                mechanism=mechanism or None,
                outcome=DENIED,
                reason=reason,
                count=left_out or None,
            )

    # --- resources

    def refused(self, caller: Caller, operation: Operation, resource: ResourceType, name: str) -> None:
        if not self.is_on:
            return
        left_out = self._limit.admit((caller.principal, caller.host), (operation, resource, name))
        if left_out is not None:
            facts = {**_who(caller), **_what(operation.name, resource.name.lower(), name)}
            self._events.tell(REFUSED, **facts, count=left_out or None)

    def changed(self, caller: Caller, operation: str, resource: str, name: str, error: str | None) -> None:
        """`resource` is a type in words: one of Kafka's, or a role, which Kafka does not have. `error` is the name of
        the error by which it failed."""
        if self.is_on and caller.principal != BROKER_PRINCIPAL:
            facts = {**_who(caller), **_what(operation, resource, name)}
            self._events.tell(CHANGED, **facts, outcome=FAILED if error else ALLOWED, reason=error)

    def password_reset(self, user: str) -> None:
        """A node was started to reset the password of this user: it has no caller, and is audited nevertheless."""
        what = _what("reset_password", ResourceType.USER.name.lower(), user)
        self._events.tell(CHANGED, principal=BROKER_PRINCIPAL, **what, outcome=ALLOWED)

    def changed_more(self, caller: Caller, operation: str, count: int) -> None:
        """So many other resources of the same request."""
        if self.is_on and caller.principal != BROKER_PRINCIPAL:
            self._events.tell(CHANGED, **_who(caller), operation=operation, count=count)

    def used(self, caller: Caller, operation: Operation, resource: ResourceType, name: str) -> None:
        """Records of the resource were written or read."""
        if not self.samples or caller.principal == BROKER_PRINCIPAL:
            return
        key, now = (caller.principal, caller.host, operation, resource, name), self._now()
        if now - self._sampled.get(key, -float("inf")) < self._sample_seconds:
            return
        self._sampled[key] = now
        self._sampled.move_to_end(key)
        if len(self._sampled) > MAX_SAMPLED:
            self._sampled.popitem(last=False)
        self._events.tell(DATA, **_who(caller), **_what(operation.name, resource.name.lower(), name))


def _who(caller: Caller) -> dict[str, str | None]:
    return {
        "principal": caller.principal,
        "client": caller.host or None,
        "client_id": caller.client_id or None,
    }


def _what(operation: str, resource: str, name: str) -> dict[str, str]:
    return {"operation": operation.lower(), "resource": resource, "name": name}


class AuditSplit:
    """EventSink: audit events go to a log of their own, all others to the status log."""

    def __init__(self, status: EventSink, audit: EventSink) -> None:
        self._status = status
        self._audit = audit

    def tell(self, kind: str, /, **facts: object) -> None:
        (self._audit if kind.startswith(PREFIX) else self._status).tell(kind, **facts)
