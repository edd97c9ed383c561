"""A consumer of a queue: a link to each node that leads some of its partitions, jobs in hand, what is said of them.

Jobs are leased, for `lease_ms` from when they were handed out. While a job is in hand, or waits to be taken, its lease
is renewed in time: every quarter of a lease, all jobs that are at least so old. So a renewal may take half a lease and
still be in time. When a link is gone, all of its jobs are somebody else's at once.

What nobody has taken when it is to end is *returned*: that does not count as a delivery. Jobs may be under way then, so
each node is told to send no more and asked for a pong, which comes behind the last of them: `is_settled` waits for it.

In a queue for one consumer a job that was fetched ahead could be done before one that failed. So a link begins with the
credit for such a queue, and is given more when its node has said that the queue is none.

What is said of jobs ("settled") is gathered until the driver asks for effects and travels in one frame for each
partition and delay. What is said of a job holds for the delivery that it came with: whoever speaks of it when it has
been given back, and perhaps handed out again over the same link, is told that it is not theirs. A broker takes a run of
offsets as a whole or not at all: where one job of a run is no longer ours, each of them is said again on its own, so
that none suffers for another's lateness.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, Literal, NamedTuple

from penstock.batch import Record
from penstock.client.errors import ClientError, Closed, Denied, LeaseLost
from penstock.client.frames import WORK_PATH, Batches, Frame, Pong, Settled, Trouble, Working, compose
from penstock.client.received import Place, Runs, records_within, runs_of
from penstock.client.session import Item, Link, Loss, Resolve, Session, Token, base_of
from penstock.errors import BatchError

Verdict = Literal["accept", "retry", "reject", "renew", "return"]
VERDICTS: Final[tuple[Verdict, ...]] = ("accept", "retry", "reject", "renew", "return")
RENEWALS_PER_LEASE: Final = 4
OFFSETS_PER_FRAME: Final = 10_000
"""A broker takes frames of a megabyte; an offset on its own has at most 43 bytes in one."""

MakeJob = Callable[..., Item]


class Credit(NamedTuple):
    """How many jobs are had at once from each node: of a queue that is shared, and of one for one consumer."""

    shared: int
    exclusive: int


class Held(NamedTuple):
    """A job in hand, by the order in which it came: the same offset may come again."""

    since: float
    order: int


class Said(NamedTuple):
    """One word about one job."""

    offset: int
    verdict: Verdict
    token: Token | None
    order: int


class Unanswered(NamedTuple):
    link: int
    place: Place
    delay_ms: int | None
    words: list[Said]


class WorkLink(Link):
    """A connection to one node."""

    def __init__(self, number: int, base: str) -> None:
        super().__init__(number, base)
        self.credit = 0
        self.lease_s = 0.0
        self.renew_at: float | None = None
        self.elsewhere: list[str] = []
        self.held: dict[Place, dict[int, Held]] = {}
        """What is leased, and since when, by offset."""
        self.words: dict[tuple[Place, int | None], list[Said]] = {}
        """What is to be said, by place and delay."""
        self.is_emptying = False
        """Whether jobs may still be under way, although it was told to send no more."""
        self.can_return = False
        """Brokers that do not say whether a queue is exclusive know no `return` either, and would hang up."""


class WorkSession(Session[Item]):
    """A queue, worked on."""

    path = WORK_PATH

    def __init__(
        self,
        queue: str,
        topics: Sequence[str],
        *,
        make: "MakeJob[Item]",
        random: Random,
        credit: Credit,
        standby: bool = False,
        name: str = "",
        patience_s: float | None = None,
    ) -> None:
        super().__init__(random=random, patience_s=patience_s)
        self._queue = queue
        self._topics = list(topics)
        self._make = make
        self._credit = credit
        self._standby = standby
        self._name = name
        self._draining = False
        self._work_links: dict[int, WorkLink] = {}
        self._unanswered: dict[int, Unanswered] = {}
        self._frames = 0
        self.lost_leases = 0

    # --- what is done with jobs

    def settle(
        self, item: Item, verdict: Verdict, delay_ms: int | None, token: Token | None, now: float
    ) -> None:
        """Says it with the next effects. The token is resolved when it is durable, or will never be."""
        link = self._work_links.get(item.link)
        if link is None or not self.holds(item):
            self._resolve(token, self._gone(item.place, item.offset))
            return
        if verdict == "renew":
            link.held[item.place][item.offset] = Held(now, item.order)
        else:
            del link.held[item.place][item.offset]
        key = item.place, delay_ms if verdict == "retry" else None
        link.words.setdefault(key, []).append(Said(item.offset, verdict, token, item.order))

    def take(self) -> Item | None:
        """The next one that is still this client's (3)."""
        while (item := super().take()) is not None and not self.holds(item):
            pass
        return item

    def holds(self, item: Item) -> bool:
        """Whether a job is still this client's, as far as it knows."""
        link = self._work_links.get(item.link)
        held = None if link is None else link.held.get(item.place, {}).get(item.offset)
        return held is not None and held.order == item.order

    def drain(self) -> None:
        """Takes no more, and returns what nobody has taken so that others have it at once."""
        if self._draining:
            return
        self._draining = True
        for link in self._work_links.values():
            if link.is_open:
                self._send(link, compose("credit", credit=0))  # or they would be handed to us again
                self._send(link, compose("ping"))
                link.is_emptying = True
        self._return_ready()

    def _return_ready(self) -> None:
        for item in self.ready:
            if self._work_links[item.link].can_return:  # a link that is gone leaves nothing here (3)
                self.settle(item, "return", None, None, 0.0)
            else:
                self.settle(item, "retry", 0, None, 0.0)
        self.ready.clear()

    @property
    def has_words(self) -> bool:
        return super().has_words or any(link.words for link in self._work_links.values())

    @property
    def is_served(self) -> bool:
        return any(link.lease_s for link in self._work_links.values())

    @property
    def is_settled(self) -> bool:
        return not self._unanswered and not any(
            link.words or link.is_emptying for link in self._work_links.values()
        )

    def wake_at(self) -> float | None:
        times = [link.renew_at for link in self._work_links.values() if link.renew_at is not None]
        usual = super().wake_at()
        return min(times if usual is None else [*times, usual], default=None)

    # --- links

    def _new_link(self, number: int, base: str) -> Link:
        link = self._work_links[number] = WorkLink(number, base)
        return link

    def _opening(self, link: Link) -> str:
        assert isinstance(link, WorkLink)
        link.credit = 0 if self._draining else min(self._credit)
        wish = {"topics": self._topics, "credit": link.credit, "standby": self._standby, "name": self._name}
        return compose("work", queue=self._queue, encoding="batch", **wish)

    def _hear(self, link: Link, said: Frame, now: float) -> None:
        assert isinstance(link, WorkLink)
        match said:
            case Batches():
                self._take_in(link, said, now)
            case Settled():
                self._answered(link, said)
            case Pong():
                link.is_emptying = False
            case Working():
                self._serves(link, said, now)
            case _:
                pass  # a subscription's

    def _serves(self, link: WorkLink, said: Working, now: float) -> None:
        self._welcomed(link)
        link.lease_s = said.lease_ms / 1000
        step_s = link.lease_s / RENEWALS_PER_LEASE  # leases may have become shorter while jobs are in hand
        link.renew_at = now + step_s if link.renew_at is None else min(link.renew_at, now + step_s)
        link.elsewhere = [base_of(lead.url) for lead in said.elsewhere if lead.url]
        link.can_return = said.exclusive is not None
        credit = self._credit.exclusive if said.exclusive else self._credit.shared
        if credit != link.credit and not self._draining:
            link.credit = credit
            self._send(link, compose("credit", credit=credit))

    def _reroute(self, link: Link, loss: Loss, now: float) -> None:
        self._pause(link.base, now)
        if loss.redirect is not None:
            self._bases.appendleft(base_of(loss.redirect))

    def _forget(self, link: Link, loss: Loss | None) -> None:
        assert isinstance(link, WorkLink)
        self._work_links.pop(link.number, None)
        reason = "the connection ended" if loss is not None else "it was closed"
        mine = [number for number, one in self._unanswered.items() if one.link == link.number]
        unsaid = [
            Unanswered(link.number, place, delay, words) for (place, delay), words in link.words.items()
        ]
        for one in [*map(self._unanswered.pop, mine), *unsaid]:
            for word in one.words:
                error = LeaseLost(
                    f"{_named(one.place, word.offset)}: {reason} before the answer: it may come again"
                )
                self._resolve(word.token, error)

    def _keep_linked(self, now: float) -> None:
        super()._keep_linked(now)
        linked = {link.base for link in self._links.values()}
        wanted = [base for link in self._work_links.values() if link.is_open for base in link.elsewhere]
        for base in dict.fromkeys(wanted):
            if base not in linked and self.ended is None and self._may_dial(base):
                self._dial(base)

    # --- jobs

    def _take_in(self, link: WorkLink, batches: Batches, now: float) -> None:
        place = Place(batches.head.topic, batches.head.partition)
        acquired = batches.head.acquired
        runs = [(first, last) for first, last, _deliveries in acquired]
        held = link.held.setdefault(place, {})
        found = set()
        try:
            for which, record in records_within(batches.data, runs):
                found.add(record.offset)
                item = self._job(link, place, record, acquired[which][2])
                held[record.offset] = Held(now, item.order)
                self.ready.append(item)
        except BatchError:
            self._say_of_rest(link, place, runs, found, "reject")  # nobody can read them
        else:
            self._say_of_rest(
                link, place, runs, found, "accept"
            )  # deleted meanwhile: nothing is left to be done
        if self._draining:
            self._return_ready()  # what was under way when it was told to stop

    def _say_of_rest(
        self, link: WorkLink, place: Place, runs: Runs, found: set[int], verdict: Verdict
    ) -> None:
        """Of what was handed out and is not in the batches."""
        if len(found) == sum(last - first + 1 for first, last in runs):
            return
        words = link.words.setdefault((place, None), [])
        for first, last in runs:
            rest = [offset for offset in range(first, last + 1) if offset not in found]
            words += [Said(offset, verdict, None, 0) for offset in rest]

    def _job(self, link: WorkLink, place: Place, record: Record, deliveries: int) -> Item:
        return self._make(place, record, link=link.number, order=self._next_order(), deliveries=deliveries)

    # --- words

    def _speak(self, now: float) -> None:
        for link in self._work_links.values():
            self._renew(link, now)
            words, link.words = link.words, {}
            for (place, delay_ms), said in words.items():
                for start in range(0, len(said), OFFSETS_PER_FRAME):
                    self._say(link, place, delay_ms, said[start : start + OFFSETS_PER_FRAME])

    def _say(self, link: Link, place: Place, delay_ms: int | None, words: list[Said]) -> None:
        words = self._without_idle_renewals(words)
        self._frames += 1
        self._unanswered[self._frames] = Unanswered(link.number, place, delay_ms, words)
        fields: dict[str, object] = {} if delay_ms is None else {"delay_ms": delay_ms}
        for verdict in VERDICTS:
            offsets = sorted({word.offset for word in words if word.verdict == verdict})
            if offsets:
                fields[verdict] = runs_of(offsets)
        number, topic, partition = self._frames, place.topic, place.partition
        self._send(link, compose("settle", number=number, topic=topic, partition=partition, **fields))

    def _without_idle_renewals(self, words: list[Said]) -> list[Said]:
        """What is settled need not be renewed, and would be refused."""
        final = {word.offset for word in words if word.verdict != "renew"}
        kept = [word for word in words if word.verdict != "renew" or word.offset not in final]
        if len(kept) != len(words):
            for word in words:
                if word.verdict == "renew" and word.offset in final:
                    self._resolve(word.token, None)
        return kept

    def _renew(self, link: WorkLink, now: float) -> None:
        if link.renew_at is None or now < link.renew_at:
            return
        step_s = link.lease_s / RENEWALS_PER_LEASE
        link.renew_at = now + step_s
        for place, held in link.held.items():
            old = [(offset, one.order) for offset, one in held.items() if now - one.since >= step_s]
            for offset, order in old:
                link.words.setdefault((place, None), []).append(Said(offset, "renew", None, order))
                held[offset] = Held(now, order)

    def _answered(self, link: WorkLink, settled: Settled) -> None:
        asked = self._unanswered.pop(settled.number, None)
        if asked is None:
            return
        error = settled.error
        for word in asked.words:
            run = None if error is None else _run_with(error.refused, word.offset)
            if error is None or (error.refused and run is None):
                self._resolve(word.token, None)
            elif run is not None and run[0] != run[1]:
                self._say(link, asked.place, asked.delay_ms, [word])
            else:
                self._lose(link, asked.place, word, error)

    def _lose(self, link: WorkLink, place: Place, word: Said, error: Trouble) -> None:
        held = link.held.get(place, {})
        if word.offset in held and held[word.offset].order == word.order:
            del held[word.offset]
        self.lost_leases += 1
        refusal = Denied(error.code, error.message)
        self._resolve(word.token, LeaseLost(f"{_named(place, word.offset)}: {refusal}: it may come again"))

    def _resolve(self, token: Token | None, error: ClientError | None) -> None:
        if token is not None:
            self._effects.append(Resolve(token, error))

    def _gone(self, place: Place, offset: int) -> ClientError:
        if self.ended is not None and isinstance(self.ended, Closed):
            return Closed(f"{_named(place, offset)}: the queue was closed; the job was given back")
        return LeaseLost(
            f"{_named(place, offset)} is settled already, or no longer this client's: its connection ended, or its "
            "lease ran out. It may be with another consumer"
        )


def _run_with(runs: Runs, offset: int) -> tuple[int, int] | None:
    return next((run for run in runs if run[0] <= offset <= run[1]), None)


def _named(place: Place, offset: int) -> str:
    return f"job {place.topic}-{place.partition} at {offset}"
