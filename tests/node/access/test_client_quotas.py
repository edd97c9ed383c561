"""Quotas on one node: they follow the metadata, and nodes of the cluster have none."""

import asyncio
from collections.abc import Callable

import pytest

from penstock.cluster import ClusterState
from penstock.cluster.quota_state import QuotaEntry
from penstock.cluster.records import QuotasChanged
from penstock.errors import ErrorCode, KafkaError
from penstock.node.access import Quotas
from penstock.node.calls import BROKER
from penstock.node.metrics import NodeMetrics
from penstock.node.parts import TopicChanges
from penstock.security.quotas import DEFAULT_ENTITY, QuotaEntity, QuotaKind
from penstock.types import Caller

ALICE = Caller("User:alice", "10.0.0.1", "app")
PRODUCER, MUTATIONS = QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONTROLLER_MUTATION_RATE
LARGE = 1_000_000_000.0


def on_loop(check: Callable[[Quotas, ClusterState], None]) -> None:
    async def run() -> None:
        state = ClusterState(1)
        check(Quotas(state, NodeMetrics(0.0)), state)

    asyncio.run(run())


def put(quotas: Quotas, state: ClusterState, entity: QuotaEntity, **values: float) -> None:
    state.apply(QuotasChanged(entry=QuotaEntry(entity, values)))
    quotas.metadata_changed(TopicChanges(()))


def test_quotas_are_in_force_while_any_is_set() -> None:
    def check(quotas: Quotas, state: ClusterState) -> None:
        assert not quotas.in_force
        assert quotas.record(PRODUCER, ALICE, LARGE) == 0
        put(quotas, state, QuotaEntity(user="alice"), producer_byte_rate=1000)
        assert quotas.in_force
        assert quotas.record(PRODUCER, ALICE, LARGE) > 0
        assert quotas.throttle_ms(PRODUCER, ALICE) > 0
        put(quotas, state, QuotaEntity(user="alice"))
        assert not quotas.in_force
        assert quotas.throttle_ms(PRODUCER, ALICE) == 0

    on_loop(check)


def test_asking_for_the_throttle_time_counts_nothing() -> None:
    def check(quotas: Quotas, state: ClusterState) -> None:
        put(quotas, state, QuotaEntity(user="alice"), producer_byte_rate=1000)
        assert [quotas.throttle_ms(PRODUCER, ALICE) for _ in range(3)] == [0, 0, 0]
        assert quotas.record(PRODUCER, ALICE, 10_000) == 0

    on_loop(check)


def test_nodes_of_the_cluster_have_no_quotas() -> None:
    def check(quotas: Quotas, state: ClusterState) -> None:
        put(quotas, state, QuotaEntity(user=DEFAULT_ENTITY), producer_byte_rate=1, controller_mutation_rate=1)
        assert quotas.record(PRODUCER, BROKER, LARGE) == 0
        assert quotas.most_at_once(PRODUCER, BROKER) is None
        mutations = quotas.mutations(BROKER, strict=True)
        for _ in range(3):
            mutations.count(1_000_000)

    on_loop(check)


def test_mutations_beyond_the_quota_are_refused_with_the_time_to_wait() -> None:
    def check(quotas: Quotas, state: ClusterState) -> None:
        put(quotas, state, QuotaEntity(user="alice"), controller_mutation_rate=1)
        strict = quotas.mutations(ALICE, strict=True)
        strict.count(100)
        assert strict.throttle_ms == 0
        with pytest.raises(KafkaError) as refusal:
            strict.count(1)
        assert refusal.value.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert strict.throttle_ms > 0
        lenient = quotas.mutations(ALICE, strict=False)
        lenient.count(1)
        assert lenient.throttle_ms > strict.throttle_ms

    on_loop(check)


def test_connections_above_the_rate_of_their_address_are_counted_as_throttled() -> None:
    async def run() -> None:
        state, metrics = ClusterState(1), NodeMetrics(0.0)
        quotas = Quotas(state, metrics)
        put(quotas, state, QuotaEntity(ip="10.0.0.1"), connection_creation_rate=1)
        delays = [quotas.connected("10.0.0.1") for _ in range(30)]
        assert delays[0] == 0
        assert delays[-1] > 0
        assert all(quotas.connected("10.0.0.2") == 0 for _ in range(30))
        assert metrics.throttled == {QuotaKind.CONNECTION_CREATION_RATE: sum(1 for delay in delays if delay)}

    asyncio.run(run())
