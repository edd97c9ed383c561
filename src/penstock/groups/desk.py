"""What all parts of the coordinator share: the groups, the clock's alarms, and the tray of effects."""

from collections.abc import Callable, Sequence

from penstock.config import GroupSettings, Limits
from penstock.errors import ErrorCode, KafkaError
from penstock.groups.group import Group
from penstock.groups.states import GroupState
from penstock.groups.timers import Timers
from penstock.groups.topics import Topics
from penstock.groups.values import Effect, Persist, Records, Reply, Result
from penstock.types import NO_EVENTS, EventSink

WhenPersisted = Callable[[int, bool], None]
"""Called with the time and whether the write succeeded."""

EXPIRY_TIMER = ("expiry",)

PERSIST_RECORDS_MAX = 1000
"""Records per write: a request or a group may bring very many, and one write is one batch in memory."""


class Desk:
    """Shared state. Every public method of the coordinator ends by taking the effects that it has led to."""

    def __init__(
        self, topics: Topics, settings: GroupSettings, limits: Limits, events: EventSink = NO_EVENTS
    ) -> None:
        self.topics = topics
        self.settings = settings
        self.limits = limits
        self.events = events
        self.groups: dict[str, Group] = {}
        self.timers = Timers()
        self._effects: list[Effect] = []
        self._last_persist_id = 0
        self._in_flight: dict[int, WhenPersisted] = {}
        self._reports: dict[int, bool] = {}
        """Writes that were reported before an older one was."""

    def reply(self, token: object, result: Result) -> None:
        self._effects.append(Reply(token=token, result=result))

    def persist(self, records: Records, then: WhenPersisted) -> None:
        """Asks for a write; `then` hears how it went. Ids grow in the order of the writes."""
        self._last_persist_id += 1
        self._in_flight[self._last_persist_id] = then
        self._effects.append(Persist(id=self._last_persist_id, records=records))

    def persist_all(self, records: Sequence[tuple[bytes, bytes | None]], then: WhenPersisted) -> None:
        """As `persist`, in writes of bounded size; `then` hears once, of all."""
        chunks = [
            records[at : at + PERSIST_RECORDS_MAX] for at in range(0, len(records), PERSIST_RECORDS_MAX)
        ]
        outcomes: list[bool] = []

        def one_persisted(now_ms: int, ok: bool) -> None:
            outcomes.append(ok)
            if len(outcomes) == len(chunks):
                then(now_ms, all(outcomes))

        for chunk in chunks:
            self.persist(tuple(chunk), one_persisted)

    def persisted(self, now_ms: int, persist_id: int, ok: bool) -> None:
        """Hears of writes in any order, and passes the news on in the order in which they were asked for:
        what is in memory has to come about as what is in the log did."""
        assert persist_id in self._in_flight
        self._reports[persist_id] = ok
        while self._in_flight and (first := next(iter(self._in_flight))) in self._reports:
            self._in_flight.pop(first)(now_ms, self._reports.pop(first))

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def find(self, group_id: str) -> Group | None:
        return self.groups.get(group_id)

    def open_group(self, now_ms: int, group_id: str, *, full: ErrorCode) -> Group:
        """The group, made if there is none.

        It is kept only once `keep` is called: a refusal leaves no trace.
        """
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
        """A group without a generation or an offset leaves nothing behind, not even a deletion to write."""
        if group.is_idle and group.generation == 0 and self.groups.get(group.group_id) is group:
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
