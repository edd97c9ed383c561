"""Cliques: workers in a ring, where every key has one owner.

    clique = Clique("pricing", "penstock://127.0.0.1:9092", worker="w1")

    @clique.handler("orders")
    async def price(message: Message, slot: Slot) -> None: ...     # for one key: one worker, one at a time, in order

    @clique.responder("quote")
    async def quote(message: Message, slot: Slot) -> bytes: ...    # anybody can ask the owner of a key

    async with clique:
        await clique.publish("orders", b"...", key=b"alice")
        answer = await clique.request("quote", b"...", key=b"alice", timeout=2)

A key belongs to one of 4,096 slots, and a slot to one worker, until workers come or go. So the state for a key can stay
in that worker's memory: `on_acquire` loads it and `on_release` saves it. `penstock.ring` decides who owns what.

Reading starts at clique.py; pubsub.py and guarantees.py say what a carrier must do for which guarantee, runner.py how
handlers run, forwarding.py how messages reach their owners where the carrier does not know them.
"""

from penstock.client.errors import CallFailed
from penstock.client.retry_policy import Reject, Retry
from penstock.clique.blocking import BlockingClique
from penstock.clique.carriers import PenstockCarrier
from penstock.clique.clique import Clique
from penstock.clique.codecs import Codec, FlowCodec, JsonCodec, MsgpackCodec, RecordCodec, WrappingCodec
from penstock.clique.errors import CliqueError, Closed, MissingExtra, OverLimit, TooWeak, Undecodable
from penstock.clique.guarantees import Guarantee
from penstock.clique.message import Message, Slot, Slots
from penstock.clique.pubsub import Capabilities, PubSub
from penstock.clique.status import CliqueStatus

__all__ = [
    "BlockingClique",
    "CallFailed",
    "Capabilities",
    "Clique",
    "CliqueError",
    "CliqueStatus",
    "Closed",
    "Codec",
    "FlowCodec",
    "Guarantee",
    "JsonCodec",
    "Message",
    "MissingExtra",
    "MsgpackCodec",
    "OverLimit",
    "PenstockCarrier",
    "PubSub",
    "RecordCodec",
    "Reject",
    "Retry",
    "Slot",
    "Slots",
    "TooWeak",
    "Undecodable",
    "WrappingCodec",
]
