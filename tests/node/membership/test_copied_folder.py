"""A copy of a node's data folder is started beside the original: the copy is refused and ends, and the original
is not affected."""

import asyncio
import copy
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from penstock.config import Address
from penstock.errors import NotAdmitted
from penstock.node.peers import refusals
from penstock.service import Service
from penstock.swim import PacketRefusal, State
from penstock.types import NodeId
from tests.kafka.trio import Trio

ANYWHERE = Address("127.0.0.1", 0)
ORIGINAL = NodeId(3)


@pytest.fixture
def trio() -> Iterator[Trio]:
    with Trio() as cluster:
        yield cluster


def copied(trio: Trio) -> Service:
    """Node 3's folder as it is now, on other ports."""
    config = msgspec.structs.replace(trio._configs[ORIGINAL], kafka=ANYWHERE, cluster=ANYWHERE)
    disk = copy.deepcopy(trio._disks[ORIGINAL])
    disk._locks.clear()  # locks are not copied with files
    return trio.call(lambda: Service(config, disk=disk))


def refused(trio: Trio, node: int, reason: PacketRefusal) -> int:
    links = trio.node(node).links
    assert links is not None
    return links.gossip.refused[reason]


def is_alive(links: Any) -> bool:
    found = links.gossip.find(ORIGINAL)
    return found is not None and found.state is State.ALIVE


def test_gossip_of_a_copy_is_refused_and_the_original_is_still_heard(trio: Trio) -> None:
    service = copied(trio)
    trio.run(service.start())
    trio.eventually(lambda: refused(trio, 1, PacketRefusal.RIVAL) + refused(trio, 2, PacketRefusal.RIVAL) > 0)
    trio.run(service.stop())
    for node in (1, 2):
        links = trio.node(node).links
        assert links is not None
        trio.eventually(lambda links=links: is_alive(links))  # type: ignore[misc]
        found = trio.call(lambda links=links: links.gossip.find(ORIGINAL))  # type: ignore[misc]
        assert found is not None
        assert str(found.meta.cluster) == str(trio._configs[ORIGINAL].cluster)
        assert refused(trio, node, PacketRefusal.REPLAYED) == 0


def test_a_copy_that_every_node_refuses_ends_and_logs_what_to_do(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "SHORTEST_CONFIRMATION_SECONDS", 0.1)
    monkeypatch.setattr(refusals, "SILENCES", 0)
    service = copied(trio)

    async def live() -> None:
        await service.start()
        try:
            await service.wait_ready()
        finally:
            await service.stop()

    with pytest.raises(NotAdmitted, match="two nodes have the id 3") as ended:
        trio.run(live())
    assert "--node-id" in ended.value.hint
    assert trio.call(lambda: trio.node(ORIGINAL).ready)


def test_an_empty_node_whose_id_is_taken_ends_too(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "SHORTEST_CONFIRMATION_SECONDS", 0.1)
    monkeypatch.setattr(refusals, "SILENCES", 0)
    config = msgspec.structs.replace(trio._configs[ORIGINAL], kafka=ANYWHERE, cluster=ANYWHERE)

    async def live() -> None:
        service = Service(config)
        await service.start()
        try:
            async with asyncio.timeout(60):
                await service.wait_ready()
        finally:
            await service.stop()

    with pytest.raises(NotAdmitted, match="two nodes have the id 3"):
        trio.run(live())
