"""Decisions on roles and their grants: functions take the state and a request, and return records or raise
KafkaError."""

from penstock.cluster.access_decisions import check_rule_count
from penstock.cluster.records import MetadataRecord, RoleChanged, RoleGrantsChanged
from penstock.cluster.state import ClusterState
from penstock.config import Limits
from penstock.errors import ErrorCode, KafkaError
from penstock.security.roles import (
    Role,
    RoleGrant,
    check_grant,
    check_role,
    find_role,
    rules_of,
)


def put_role(state: ClusterState, role: Role, limits: Limits) -> list[MetadataRecord]:
    """A new role, or another set of permissions for one of the cluster's own. Its grants change with it."""
    check_role(role)
    roles = state.access.roles
    if role.name not in roles and len(roles) >= limits.max_roles:
        message = f"the cluster has {len(roles)} roles of its own, and limits.max_roles allows no more"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    grown = sum(
        len(rules_of(role, grant)) - len(rules)
        for grant, rules in state.access.grants.items()
        if grant.role == role.name
    )
    check_rule_count(state, grown, limits)
    return [RoleChanged(name=role.name, permissions=role.permissions)]


def delete_role(state: ClusterState, name: str) -> list[MetadataRecord]:
    """Only a role without grants can be deleted: otherwise users would lose permissions without notice."""
    find_role(name, state.access.roles)
    if name not in state.access.roles:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the role {name!r} is built in and cannot be deleted")
    grants = sum(grant.role == name for grant in state.access.grants)
    if grants:
        message = f"the role {name!r} has {grants} grants: revoke them first"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    return [RoleChanged(name=name, permissions=())]


def grant_role(state: ClusterState, grant: RoleGrant, limits: Limits) -> list[MetadataRecord]:
    """A grant that exists stays as it is."""
    check_grant(grant, state.access.roles)
    grants = state.access.grants
    if grant in grants:
        return []
    if len(grants) >= limits.max_role_grants:
        message = f"the cluster has {len(grants)} grants of roles, and limits.max_role_grants allows no more"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    check_rule_count(state, len(rules_of(find_role(grant.role, state.access.roles), grant)), limits)
    return [RoleGrantsChanged(added=[grant], removed=[])]


def revoke_role(state: ClusterState, grant: RoleGrant) -> list[MetadataRecord]:
    """Exactly this grant: one for a pattern is another one than that for everything."""
    if grant not in state.access.grants:
        message = f"{grant.principal[:100]} has no such grant of the role {grant.role[:100]!r}"
        raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, message)
    return [RoleGrantsChanged(added=[], removed=[grant])]
