"""The page about cliques: its programs run as printed, and the database refuses a worker that is not the owner."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Broker
from penstock.clique import Clique, Message, Slot, Slots
from penstock.clique.memory import MemoryPubSub
from penstock.ring.slots import slot_of
from tests.clique.world import WAIT_S, asynchronous, until
from tests.faults.waiting import eventually

PAGE = Path(__file__).parents[2] / "docs" / "cliques.md"
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
FIRST, ASKING, BY_COUNTRY, STATE, FENCED, PENSTOCK, NATS, OWN_CARRIER, BLOCKING = range(9)

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Runs blocks of the page in a namespace, on a broker of its own, and returns the namespace."""
    monkeypatch.chdir(tmp_path)  # the database
    blocks = BLOCK.findall(PAGE.read_text())
    assert len(blocks) == BLOCKING + 1

    def run_blocks(*numbers: int, names: dict[str, Any] | None = None) -> dict[str, Any]:
        names = {} if names is None else names
        names.setdefault("__name__", "page")
        for number in numbers:
            source = blocks[number].replace("127.0.0.1:9092", broker.bootstrap_servers)
            exec(compile(source, str(PAGE), "exec"), names)
        return names

    with Broker() as broker:
        yield run_blocks


def test_the_first_program_counts_and_the_second_one_asks(run: Run) -> None:
    printed: list[str] = []
    loops: list[asyncio.AbstractEventLoop] = []

    def tell(*words: object) -> None:
        printed.append(" ".join(map(str, words)))
        loops.append(asyncio.get_running_loop())

    names: dict[str, Any] = {"print": tell}
    worker = threading.Thread(target=run, args=(FIRST,), kwargs={"names": names})
    worker.start()
    eventually(lambda: "total" in names and names["clique"].status().is_member, "the program works", WAIT_S)
    run(ASKING, names=names)
    eventually(lambda: "b'alice' has paid 250" in printed, "the payment is counted", WAIT_S)
    loop = loops[printed.index("b'alice' has paid 250")]
    loop.call_soon_threadsafe(names["clique"].stop)
    worker.join(WAIT_S)
    assert not worker.is_alive()
    assert {"b'0'", "b'250'"} & set(printed)


@asynchronous
async def test_totals_go_from_owner_to_owner_through_the_database(run: Run) -> None:
    first = run(BY_COUNTRY, STATE, FENCED, names=imports())
    async with first["keeper"] as keeper:
        await keeper.wait_for_slots(WAIT_S)
        for cents in (100, 50):
            await keeper.publish("payments", json=cents, key="bob")
        await until(lambda: first["cents"] == {b"bob": 150})
    assert first["cents"] == {}
    second = run(STATE, FENCED, names=imports())
    async with second["keeper"] as keeper:
        await keeper.wait_for_slots(WAIT_S)
        assert second["cents"] == {b"bob": 150}


@asynchronous
async def test_the_database_refuses_the_write_of_a_former_owner(run: Run) -> None:
    names = run(STATE, FENCED, names=imports())
    number = slot_of(b"bob")
    payment = Message(stream="payments", key=b"bob", value=b"100")
    await names["load"](Slots({number: 7}))
    await names["save"](payment, Slot(number, 7))
    await names["load"](Slots({number: 9}))
    with pytest.raises(names["NotTheOwner"]):
        await names["save"](payment, Slot(number, 7))
    await names["save"](payment, Slot(number, 9))
    assert names["database"].execute("SELECT customer, cents FROM totals").fetchall() == [(b"bob", 200)]


@asynchronous
async def test_a_carrier_of_ones_own_counts_what_goes_through_it(run: Run) -> None:
    counted = run(OWN_CARRIER)["Counted"](MemoryPubSub("page"))
    handled = asyncio.Event()
    clique = Clique("counting", counted)

    @clique.handler("payments")
    async def handle(message: Message, slot: Slot) -> None:
        handled.set()

    async with clique:
        await clique.wait_for_slots(WAIT_S)
        await clique.publish("payments", b"1", key="alice")
        async with asyncio.timeout(WAIT_S):
            await handled.wait()
    assert counted.published >= 1
    assert clique.guarantee.level == "at-least-once"


def test_the_blocking_program_counts_visits(run: Run) -> None:
    printed: list[str] = []
    run(BLOCKING, names={**imports(), "print": lambda *words: printed.append(" ".join(map(str, words)))})
    assert printed == ["visits: b'1'"]


def test_carriers_take_settings_beside_the_address(run: Run) -> None:
    names = run(PENSTOCK, NATS, names=imports())
    assert "penstock://10.0.0.1:9092" in repr(names["prices"])
    assert "nats://10.0.0.5:4222" in repr(names["quotes"])


def imports() -> dict[str, Any]:
    """Of the first block, whose program runs until it is stopped."""
    return {"Clique": Clique, "Message": Message, "Slot": Slot}
