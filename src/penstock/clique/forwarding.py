"""Brings messages to the owners of their slots, on carriers that give them to any worker.

A worker that has got a message from the carrier keeps it until its owner has handled it: it sends the message to the
owner, again if no answer comes, and elsewhere if the slot has another owner by then. So a message is lost only with the
worker that holds it, and not even then if the carrier has acknowledgements.

 1. An item is in exactly one place: at the inbox (it runs here), sent (another worker has it, perhaps), or held (the
    table does not tell where it can run).
 2. A message that was sent and not answered is sent again to the same owner, less and less often: the owner recognises
    copies. It is sent to another owner as soon as the table names one, because then the former has let go of the slot.
 3. A request is sent once to each owner. Whether an owner that is gone had begun it cannot be known, and the sender of
    the request decides better than a worker whether to ask again.
 4. An item that came from another worker is forwarded at most so often that two views never send it in a circle
    (`penstock.ring.routing`): it goes back to where it came from.
"""

import itertools
import time
from math import inf
from typing import Final

from penstock.clique.clocks import lease_clock_ms
from penstock.clique.inbox import Inbox
from penstock.clique.items import Item
from penstock.clique.limits import IN_FLIGHT_MAX
from penstock.clique.membership import Membership
from penstock.clique.peers import PeerLinks
from penstock.clique.wire import Forward, address_of
from penstock.ring.routing import ForwardTo, Hold, Refuse, RunHere, route

RESEND_MS: Final = 3_000.0
RESEND_MAX_MS: Final = 30_000.0
"""The pause before a message is sent again, which doubles up to the second. Carriers lose messages rarely, when they
reconnect; an owner that is busy must not get everything twice."""
HOLD_MS: Final = 1_000.0
"""Held messages are looked at again after this time, also if the table has not changed."""
RETRY_MS: Final = 100.0
"""After an owner has answered that it is busy, or does not own the slot, and the table has not changed."""


class SentItem:
    """An item that another worker has, or should have."""

    __slots__ = ("due_ms", "item", "member_id", "pause_ms")

    def __init__(self, item: Item, member_id: str, now_ms: float) -> None:
        self.item = item
        self.member_id = member_id
        self.pause_ms = RESEND_MS
        self.due_ms = now_ms + RESEND_MS


class Forwarder:
    """What this worker has got and its owners have not handled yet."""

    def __init__(self, membership: Membership, inbox: Inbox, links: PeerLinks, address: str) -> None:
        self._membership = membership
        self._inbox = inbox
        self._links = links
        self._address = address
        self._numbers = itertools.count(1)
        self._sent: dict[int, SentItem] = {}
        self._held: dict[int, tuple[Item, float]] = {}
        """With the time from when on they are tried again although the table has not changed."""
        self._seen = (0, "")
        """The epoch and the own member id for which everything is where it should be."""

    def __len__(self) -> int:
        return len(self._sent) + len(self._held)

    @property
    def has_room(self) -> bool:
        return len(self) < IN_FLIGHT_MAX

    def has_undone(self, *, acks: bool) -> bool:
        """Whether this worker should not end yet: other workers have messages and will answer, or will have owners for
        those that are held. With acknowledgements the carrier can bring held messages to others as well."""
        table = self._membership.latest_table
        others = 0 if table is None else len(set(table.workers) - {self._membership.worker})
        return bool(self._sent) or (bool(self._held) and others > 0 and not acks)

    def route(self, item: Item) -> None:
        """Takes responsibility for an item (1)."""
        decision = route(
            self._membership.latest_table,
            self._membership.member_id,
            item.slot,
            item.hops,
            is_nested=item.chain is not None,
        )
        match decision:
            case RunHere():
                self._inbox.take(item)
            case ForwardTo(member_id=member_id) if address_of(member_id) != self._address:
                self._send(item, member_id)
            case ForwardTo() | Hold():  # to a former self of this worker: it owns nothing
                self._hold(item)
            case Refuse():
                self.reroute(item)

    def reroute(self, item: Item) -> None:
        """This worker cannot run it any more: it goes back to the worker that had it, or to the next owner."""
        if not item.give_back():
            self._hold(item)

    # --- answers

    def done(self, forward_id: int) -> None:
        sent = self._sent.pop(forward_id, None)
        if sent is not None:
            sent.item.done()

    def gave_back(self, forward_id: int, attempts: int) -> None:
        sent = self._sent.pop(forward_id, None)
        if sent is not None:
            sent.item.attempts = max(sent.item.attempts, attempts)
            self._hold(sent.item, RETRY_MS)

    def too_large(self, forward_id: int) -> Item | None:
        """The carrier cannot bring it to its owner: the item is the caller's now."""
        sent = self._sent.pop(forward_id, None)
        return None if sent is None else sent.item

    # --- time and tables

    def table_changed(self) -> None:
        """Messages go to new owners, and what was held may have one. May be called when nothing has changed."""
        table = self._membership.latest_table
        seen = 0 if table is None else table.epoch, self._membership.member_id
        if seen == self._seen:
            return
        self._seen = seen
        self._inbox.slots_changed(self._membership.is_granted, self._membership.holds)
        for forward_id, sent in list(self._sent.items()):
            owner = None if table is None else table.owner_of(sent.item.slot)
            if (owner is None or owner.member_id != sent.member_id) and not sent.item.is_request:
                del self._sent[forward_id]
                self._hold(sent.item)
        self._try_held(inf)

    def tick(self) -> None:
        """Regularly: sends again what was not answered (2), and drops requests whose time is over."""
        now_ms, now = lease_clock_ms(), time.time()
        for forward_id, sent in list(self._sent.items()):
            if _is_over(sent.item, now):
                del self._sent[forward_id]
            elif now_ms >= sent.due_ms and not sent.item.is_request:
                sent.pause_ms = min(2 * sent.pause_ms, RESEND_MAX_MS)
                sent.due_ms = now_ms + sent.pause_ms
                self._transmit(forward_id, sent)
        self._try_held(now_ms)

    def abandon(self) -> list[Item]:
        """This worker ends: what it could not bring to an owner."""
        left = [sent.item for sent in self._sent.values()] + [item for item, _due_ms in self._held.values()]
        self._sent.clear()
        self._held.clear()
        return left

    # --- places (1)

    def _send(self, item: Item, member_id: str) -> None:
        forward_id = next(self._numbers)
        sent = self._sent[forward_id] = SentItem(item, member_id, lease_clock_ms())
        self._transmit(forward_id, sent)

    def _transmit(self, forward_id: int, sent: SentItem) -> None:
        item = sent.item
        frame = Forward(
            forward_id=forward_id,
            sender=self._address,
            stream=item.stream,
            data=item.data,
            headers=dict(item.headers),
            reply=item.reply,
            identity=item.identity,
            hops=item.hops + 1,
            attempts=item.attempts,
        )
        self._links.send(address_of(sent.member_id), frame)

    def _hold(self, item: Item, for_ms: float = HOLD_MS) -> None:
        """Until the table changes, or for this long."""
        self._held[next(self._numbers)] = item, lease_clock_ms() + for_ms

    def _try_held(self, now_ms: float) -> None:
        now = time.time()
        for number, (item, due_ms) in list(self._held.items()):
            if _is_over(item, now):
                del self._held[number]
            elif now_ms >= due_ms:
                del self._held[number]
                self.route(item)


def _is_over(item: Item, now: float) -> bool:
    return item.deadline is not None and now >= item.deadline
