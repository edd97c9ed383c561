"""Decisions on one node: remembered as long as the rules are the same, and told to those that wait."""

import pytest

from penstock.cluster import AclsChanged, ClusterState, UserChanged
from penstock.node.access import Access, access
from penstock.node.parts import TopicChanges
from penstock.security.acls import AclBinding, PatternType, Permission
from penstock.types import ANONYMOUS, BROKER_PRINCIPAL, CLUSTER_NAME, Caller, Operation, ResourceType

ALICE = Caller("User:alice", "10.0.0.1")
TOPIC = ResourceType.TOPIC


def rule(principal: str = "User:alice", name: str = "orders") -> AclBinding:
    return AclBinding(TOPIC, name, PatternType.LITERAL, principal, "*", Operation.READ, Permission.ALLOW)


def change(
    state: ClusterState, *, added: tuple[AclBinding, ...] = (), removed: tuple[AclBinding, ...] = ()
) -> None:
    state.apply(AclsChanged(added=list(added), removed=list(removed)))


@pytest.fixture
def state() -> ClusterState:
    return ClusterState(1)


def may_read(found: Access, caller: Caller, name: str = "orders") -> bool:
    return found.allows(caller, Operation.READ, TOPIC, name)


def test_without_login_everybody_may_do_everything(state: ClusterState) -> None:
    assert may_read(Access(state, is_required=False), ANONYMOUS)


def test_a_decision_follows_the_rules(state: ClusterState) -> None:
    found = Access(state, is_required=True)
    assert not may_read(found, ALICE)
    change(state, added=(rule(),))
    assert may_read(found, ALICE)
    assert not may_read(found, ALICE, "payments")
    change(state, removed=(rule(),))
    assert not may_read(found, ALICE)


def test_a_rule_for_a_group_is_for_callers_in_it(state: ClusterState) -> None:
    found = Access(state, is_required=True)
    change(state, added=(rule("Group:ops"),))
    assert may_read(found, Caller("User:bob", "10.0.0.1", "", ("Group:ops",)))
    assert not may_read(found, Caller("User:bob", "10.0.0.1", "", ("Group:dev",)))


def test_super_users_and_the_nodes_themselves_need_no_rule(state: ClusterState) -> None:
    found = Access(state, is_required=True, super_users=["User:root"])
    for principal in ("User:root", BROKER_PRINCIPAL):
        assert found.allows(Caller(principal), Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)


def test_remembered_decisions_are_bounded(state: ClusterState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "MAX_REMEMBERED", 10)
    found = Access(state, is_required=True)
    for number in range(100):
        assert not may_read(found, ALICE, f"topic-{number}")
        assert len(found._decisions) <= 10


def test_those_that_wait_are_told_of_changes_until_they_stop(state: ClusterState) -> None:
    found = Access(state, is_required=True)
    told: list[str] = []
    unwatch = found.watch(lambda: told.append("changed"))
    found.metadata_changed(TopicChanges(()))
    assert told == []
    change(state, added=(rule(),))
    found.metadata_changed(TopicChanges(()))
    state.apply(UserChanged(user="alice", passwords={}))
    found.metadata_changed(TopicChanges(()))
    assert told == ["changed", "changed"]
    unwatch()
    unwatch()
    change(state, removed=(rule(),))
    found.metadata_changed(TopicChanges(()))
    assert told == ["changed", "changed"]
