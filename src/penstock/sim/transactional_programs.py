"""Programs with transactions, and readers of committed records.

A program consumes, transforms and produces: the offset that was committed last tells it the number of its next step; it
appends records with that number to some partitions and commits the number as the next offset, in one transaction. Two
programs may have the same transactional id, so that each fences the other and goes on as a zombie. A program may die
within a transaction, or abort it. It repeats requests as clients do, and some of its requests come a second time, much
later.

A program of the older dialect keeps its epoch from one transaction to the next. After a request that may still be under
way, to commit offsets or to end a transaction, it asks for another epoch: such a request would count in the next
transaction (see `transactions/ending.py`). A batch would not: its sequence tells.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from penstock.batch import Record, build_batch, check_batch, iter_headers
from penstock.cluster import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock.errors import ErrorCode, KafkaError, PenstockError
from penstock.groups import CommitRequest, OffsetToCommit
from penstock.node import Node
from penstock.sim.clients import KEYS
from penstock.sim.clock import EPOCH_MS
from penstock.sim.host import READ_BYTES, Host
from penstock.sim.node_client import NoAnswer, NodeClient, Question
from penstock.sim.outcome import Violation
from penstock.sim.partitions import TOPIC
from penstock.sim.transaction_history import Poll, SimTransaction, TransactionHistory, committed_records
from penstock.transactions import AddRequest, Dialect, EndRequest, InitRequest, Producer
from penstock.types import ANONYMOUS, Isolation, Offset, TopicPartition

if TYPE_CHECKING:
    from penstock.sim.cluster import ClusterWorld

T = TypeVar("T")

ATTEMPTS = 12
"""How often a request is repeated before the program starts over."""
RETRY_S = 0.03
STEP_S = 0.02
TIMEOUTS_MS = (800, 2_000, 5_000)
DIE = 0.08
"""Chance, in each of several places of a transaction, that the program dies there."""
FOR_GOOD = 0.2
"""How many of them do not come back: only the coordinator can end their transaction."""
ABORT = 0.15
AGAIN = 0.08
"""How often a request comes a second time, much later."""

_FENCED = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
"""Errors after which a program starts over: another one has its id, or the coordinator has aborted its transaction."""


ISOLATED_ENDS = 5.0
"""How much more often than the fault mix says a coordinator is isolated when it is asked to end a transaction."""

COORDINATOR, GROUP = "the coordinator of transactions", "the coordinator of the group"


class StartOver(Exception):
    """This life of the program is over. The next one ends what it has begun."""


class Life:
    """The state of a program in memory, which is lost when it starts over."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.sequences: dict[int, int] = {}
        """The next sequence on each partition."""
        self.may_be_delayed = False
        """Whether a request to commit offsets, or to end a transaction, may be under way."""

    def goes_on_as(self, producer: Producer) -> None:
        if producer != self.producer:
            self.producer, self.sequences = producer, {}
        self.may_be_delayed = False


class TransactionalProgram(NodeClient):
    """One program, through all its lives."""

    def __init__(
        self, world: "ClusterWorld", name: str, history: TransactionHistory, transactional_id: str
    ) -> None:
        super().__init__(world, name)
        self._history = history
        self.transactional_id = transactional_id
        self._dialect = self.random.choice((Dialect.V1, Dialect.V1, Dialect.V2))
        self._timeout_ms = self.random.choice(TIMEOUTS_MS)
        self._known: dict[object, Host] = {}
        """The nodes that the program believes to have a role: those that answered last."""
        self.resting = False
        self.is_idle = False
        """It has begun nothing that it has not ended."""
        self.is_gone = False
        self.steps = 0

    # --- lives

    async def run(self) -> None:
        while True:
            try:
                life = Life(await self._init(None))
                await self._live(life)
            except (StartOver, NoAnswer, PenstockError):
                self.world.tally.add("transactional programs started over")
            if self.is_gone or (self.resting and self.is_idle):
                return
            await self.pause(self.random.choice((STEP_S, 1.0)))

    async def _live(self, life: Life) -> None:
        self.is_idle = True
        while not self.resting:
            number = await self._committed_number() + 1
            for _ in range(self.random.randint(1, 10)):
                if self.resting:
                    break
                self.is_idle = False
                if await self._transact(life, self._history.begin(self.transactional_id, number)):
                    number += 1
                self.is_idle = True
                await self.pause(STEP_S)

    async def _transact(self, life: Life, one: SimTransaction) -> bool:
        """Whether it was committed."""
        indexes = self.random.sample(
            range(self.world.partition_count), self.random.randint(1, self.world.partition_count)
        )
        for index in indexes:
            if self._dialect is Dialect.V1:
                await self._add(life, TopicPartition(TOPIC, index))
            for batch in range(self.random.choice((1, 1, 2))):
                await self._write(life, one, index, batch)
            await self._die_sometimes()
        await self._commit_offset(life, one.number)
        await self._die_sometimes()
        commit = self.world.calm or self.random.random() > ABORT
        one.commit_asked = commit
        await self._end(life, commit=commit)
        one.committed = commit
        self.steps += 1
        return commit

    async def _die_sometimes(self) -> None:
        """Without a word: the transaction stays open until its coordinator aborts it, or until the next life begins."""
        if not self.world.calm and self.random.random() < DIE:
            self.world.tally.add("transactional programs that died")
            self.is_gone = self.random.random() < FOR_GOOD
            await self.pause(self.random.choice((0.1, 1.0, self._timeout_ms / 500)))
            raise StartOver

    # --- the coordinator

    async def _init(self, expected: Producer | None) -> Producer:
        request = InitRequest(
            transactional_id=self.transactional_id, timeout_ms=self._timeout_ms, expected=expected
        )

        async def init(node: Node) -> Producer:
            result = await node.transactions.init_producer_id(request)
            _check(result.error)
            return result.producer

        return await self._insist(COORDINATOR, self._coordinator, init)

    async def _add(self, life: Life, name: TopicPartition) -> None:
        request = AddRequest(
            transactional_id=self.transactional_id,
            producer=life.producer,
            partitions=frozenset({name}),
            dialect=Dialect.V1,
        )

        async def add(node: Node) -> None:
            _check(await node.transactions.add_partitions(request))

        await self._insist(COORDINATOR, self._coordinator, add, again=self._is_repeated())

    async def _end(self, life: Life, *, commit: bool) -> None:
        request = EndRequest(
            transactional_id=self.transactional_id,
            producer=life.producer,
            commit=commit,
            dialect=self._dialect,
        )
        again = self._is_repeated()
        life.may_be_delayed |= again

        async def end(node: Node) -> Producer:
            self.world.faults.isolate_writer(self.host(node.node_id), share=ISOLATED_ENDS)
            result = await node.transactions.end(request)
            _check(result.error)
            return result.producer

        def missed() -> None:
            life.may_be_delayed = True

        successor = await self._insist(COORDINATOR, self._coordinator, end, again=again, missed=missed)
        if self._dialect is Dialect.V2:
            life.goes_on_as(successor)
        elif life.may_be_delayed:
            life.goes_on_as(await self._init(life.producer))

    async def _coordinator(self) -> Host:
        async def find(node: Node) -> int:
            await node.transactions.cores.ensure_topic()
            return node.view.coordinator(self.transactional_id, topic_name=TRANSACTIONS_TOPIC).node_id

        return self.host(await self.ask(self.any_host(), find))

    # --- partitions

    async def _write(self, life: Life, one: SimTransaction, index: int, batch: int) -> None:
        values = [one.value(index, batch, number) for number in range(self.random.choice((1, 2)))]
        self._history.sends(one, values)
        sequence = life.sequences.get(index, 0)
        life.sequences[index] = sequence + len(values)
        data = self._batch(life.producer, sequence, values)
        offset = await self._insist(
            index,
            lambda: self._leader(index),
            self._produce(life.producer, index, data),
            again=self._is_repeated(),
        )
        one.written |= {value: (index, offset + number) for number, value in enumerate(values)}

    def _batch(self, producer: Producer, sequence: int, values: list[bytes]) -> bytes:
        now_ms = EPOCH_MS + int(self.world.scheduler.time * 1000)
        rows = [
            Record(number, now_ms, self.random.choice(KEYS), value) for number, value in enumerate(values)
        ]
        return build_batch(
            rows,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            transactional=True,
        )

    def _produce(self, producer: Producer, index: int, data: bytes) -> Question[int]:
        async def produce(node: Node) -> int:
            partition = node.leader(TOPIC, index)
            partition.check_in_sync()
            adds = self._dialect is Dialect.V2
            _check(
                await node.led_transactions.admit(
                    partition, self.transactional_id, producer, adds=adds, caller=ANONYMOUS
                )
            )
            batch = bytearray(data)
            appended = partition.append(batch, check_batch(batch))
            self.world.faults.isolate_writer(self.host(node.node_id))
            committed = partition.committed_at(appended)
            if committed is not None:
                await committed
            return appended.base_offset

        return produce

    async def _leader(self, index: int) -> Host:
        async def find(node: Node) -> int:
            return node.view.partition(node.metadata.state.topics[TOPIC], index).leader

        leader = await self.ask(self.any_host(), find)
        return self.host(leader) if leader > 0 else self.any_host()

    # --- offsets

    async def _committed_number(self) -> int:
        """The last step of any program with this id. It is stable: the coordinator has ended all transactions before
        this program got its epoch."""
        name = TopicPartition(TOPIC, 0)

        async def fetch(node: Node) -> int:
            found = node.groups.committed(self.transactional_id, [name])
            if node.groups.unstable(self.transactional_id, [name]):
                raise KafkaError(ErrorCode.UNSTABLE_OFFSET_COMMIT, "pending")
            return found[name].offset if name in found else 0

        return await self._insist(GROUP, self._group_coordinator, fetch)

    async def _commit_offset(self, life: Life, number: int) -> None:
        offset = OffsetToCommit(topic=TOPIC, partition=0, offset=number)
        request = CommitRequest(group_id=self.transactional_id, offsets=(offset,), producer=life.producer)

        async def commit(node: Node) -> None:
            host = await node.groups.cores.host_of(self.transactional_id)
            adds = self._dialect is Dialect.V2
            _check(
                await node.led_transactions.admit(
                    host.partition, self.transactional_id, life.producer, adds=adds, caller=ANONYMOUS
                )
            )
            for code in (await node.groups.commit(request)).errors.values():
                _check(code)

        if self._dialect is Dialect.V1:
            await self._add(life, TopicPartition(OFFSETS_TOPIC, await self._offsets_partition()))

        def missed() -> None:
            life.may_be_delayed = True

        await self._insist(GROUP, self._group_coordinator, commit, missed=missed)

    async def _offsets_partition(self) -> int:
        async def find(node: Node) -> int:
            return node.groups.cores.index_of(self.transactional_id)

        return await self._insist(GROUP, self._group_coordinator, find)

    async def _group_coordinator(self) -> Host:
        async def find(node: Node) -> int:
            await node.groups.cores.ensure_topic()
            return node.view.coordinator(self.transactional_id).node_id

        return self.host(await self.ask(self.any_host(), find))

    # --- repeating

    def _is_repeated(self) -> bool:
        return not self.world.calm and self.random.random() < AGAIN

    async def _insist(
        self,
        role: object,
        find: Callable[[], Awaitable[Host]],
        question: Question[T],
        *,
        again: bool = False,
        missed: Callable[[], None] = lambda: None,
    ) -> T:
        """Asks until the answer is final. `missed` is called for each request that was not answered."""
        for _ in range(ATTEMPTS):
            try:
                host = self._known.pop(role, None) or await find()
            except (NoAnswer, PenstockError):
                await self.pause(RETRY_S)
                continue
            try:
                result = await self.ask(host, question, again=again)
                self._known[role] = host
                return result
            except NoAnswer:
                missed()
            except KafkaError as refused:
                if refused.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                    raise Violation("a producer's sequence goes on", f"{self.name}: {refused}") from refused
                if refused.code in _FENCED:
                    raise StartOver from refused
            except PenstockError:
                pass
            await self.pause(RETRY_S)
        raise StartOver


def _check(code: ErrorCode) -> None:
    if code is not ErrorCode.NONE:
        raise KafkaError(code, code.name)


class CommittedReader(NodeClient):
    """Polls all partitions with read_committed, again and again. Sometimes it starts over from the beginning."""

    def __init__(self, world: "ClusterWorld", name: str, history: TransactionHistory) -> None:
        super().__init__(world, name)
        self._history = history
        self._offsets = dict.fromkeys(range(world.partition_count), 0)
        self._leaders: dict[int, Host] = {}

    async def run(self) -> None:
        while True:
            for index in self._offsets:
                host = self._leaders.pop(index, None) or self.any_host()
                try:
                    await self._poll(host, index)
                    self._leaders[index] = host
                except (NoAnswer, PenstockError):
                    continue
            await self.pause(STEP_S)

    async def _poll(self, host: Host, index: int) -> None:
        if self.random.random() < 0.02:
            self._offsets[index] = 0
        offset = self._offsets[index]

        async def fetch(node: Node) -> tuple[int, bytes, list[tuple[int, int]]]:
            partition = node.leader(TOPIC, index)
            partition.check_readable()
            end = partition.end_for(Isolation.READ_COMMITTED)
            at = Offset(max(offset, partition.start_offset))
            data = bytes(partition.read(at, READ_BYTES, end=end, at_least_one=True))
            aborted = [(one.producer_id, one.first_offset) for one in partition.aborted_in(at, data)]
            return at, data, aborted

        at, data, aborted = await self.ask(host, fetch)
        end = max([at, *(header.next_offset for _, header in iter_headers(data))])
        records = committed_records(data, aborted, at)
        self._history.polled(Poll(self.name, index, at, end, records))
        self._offsets[index] = end
