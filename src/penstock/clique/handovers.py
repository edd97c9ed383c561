"""Tells the next owners of slots where the sequences of these slots are (ordering.py), before the slots are
released."""

import asyncio
import itertools
from contextlib import suppress
from typing import Final

from penstock.clique.inbox import Inbox
from penstock.clique.membership import Membership
from penstock.clique.ordering import SequenceState
from penstock.clique.peers import PeerLinks
from penstock.clique.wire import HandedOver, Handover, address_of

HANDOVER_SECONDS: Final = 1.0
"""How long a release waits until the next owner has answered. Without an answer the next owner finds out itself, in
about the same time."""
STATES_PER_FRAME: Final = 1_000


class Handovers:
    def __init__(self, membership: Membership, inbox: Inbox, links: PeerLinks, address: str) -> None:
        self._membership = membership
        self._inbox = inbox
        self._links = links
        self._address = address
        self._numbers = itertools.count(1)
        self._unanswered: dict[int, asyncio.Future[None]] = {}

    async def send(self, states: list[SequenceState]) -> None:
        """Returns when the next owners know them, or have not answered for a while."""
        by_owner: dict[str, list[SequenceState]] = {}
        for state in states:
            if (owner := self._membership.next_owner(state.slot)) is not None:
                by_owner.setdefault(address_of(owner), []).append(state)
        answers = {}
        for address, known in by_owner.items():
            for start in range(0, len(known), STATES_PER_FRAME):
                number = next(self._numbers)
                answers[number] = asyncio.get_running_loop().create_future()
                part = tuple(known[start : start + STATES_PER_FRAME])
                self._links.send(address, Handover(number, self._address, part))
        self._unanswered |= answers
        with suppress(TimeoutError):
            async with asyncio.timeout(HANDOVER_SECONDS):
                await asyncio.gather(*answers.values())
        for number in answers:
            self._unanswered.pop(number, None)

    def received(self, frame: Handover) -> None:
        self._inbox.go_on(frame.states)
        self._links.send(frame.sender, HandedOver(frame.handover_id))

    def answered(self, handover_id: int) -> None:
        answer = self._unanswered.get(handover_id)
        if answer is not None and not answer.done():
            answer.set_result(None)
