"""State that all parts of the coordinator share: the groups, their timers, and the outbox of effects."""

from penstock.config import GroupSettings, Limits
from penstock.effects import Outbox
from penstock.errors import ErrorCode, KafkaError
from penstock.groups.group import Group
from penstock.groups.open_transactions import OpenTransactions
from penstock.groups.states import GroupState
from penstock.groups.topics import Topics
from penstock.timers import Timers
from penstock.types import NO_EVENTS, EventSink

EXPIRY_TIMER = ("expiry",)


class SharedState:
    """Every public method of the coordinator that changes something ends by taking the effects from the outbox."""

    def __init__(
        self, topics: Topics, settings: GroupSettings, limits: Limits, events: EventSink = NO_EVENTS
    ) -> None:
        self.topics = topics
        self.settings = settings
        self.limits = limits
        self.events = events
        self.groups: dict[str, Group] = {}
        self.timers = Timers()
        self.outbox = Outbox()
        self.transactions = OpenTransactions()

    def find(self, group_id: str) -> Group | None:
        return self.groups.get(group_id)

    def open_group(self, now_ms: int, group_id: str, *, full: ErrorCode) -> Group:
        """The group, created if it does not exist. It is stored only by `keep`: a refused request leaves no trace."""
        group = self.groups.get(group_id)
        if group is not None:
            return group
        if len(self.groups) >= self.limits.max_groups:
            raise KafkaError(full, f"limits.max_groups ({self.limits.max_groups}) is reached")
        return Group(group_id, now_ms)

    def keep(self, now_ms: int, group: Group) -> None:
        self.groups[group.group_id] = group
        if EXPIRY_TIMER not in self.timers:
            self.timers.set(EXPIRY_TIMER, now_ms + self.settings.offsets_retention_check_interval_ms)

    def drop_if_never_used(self, now_ms: int, group: Group) -> None:
        """A group without a generation or an offset is removed without a record in the log."""
        is_stored = group.generation > 0 or group.consumer is not None
        if group.is_idle and not is_stored and self.groups.get(group.group_id) is group:
            group.move_to(GroupState.DEAD, now_ms)
            del self.groups[group.group_id]


def session_timer(group: Group, member_id: str) -> tuple[str, ...]:
    return ("session", group.group_id, member_id)


def pending_timer(group: Group, member_id: str) -> tuple[str, ...]:
    return ("pending", group.group_id, member_id)


def join_timer(group: Group) -> tuple[str, ...]:
    return ("join", group.group_id)


def sync_timer(group: Group) -> tuple[str, ...]:
    return ("sync", group.group_id)
