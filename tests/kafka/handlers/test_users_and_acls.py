"""Users and access rules by Kafka's APIs: limits, mistakes, and what they answer without an authorizer."""

from collections.abc import Iterator
from typing import Any

import pytest

from penstock import Broker
from penstock.config import Limits
from penstock.errors import ErrorCode
from penstock.kafka.handlers.acls import MAX_FILTERS
from penstock.kafka.handlers.users import MAX_CHANGES
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages import alter_user_scram_credentials as altering
from penstock.kafka.wire.messages import create_acls as creating
from penstock.kafka.wire.messages import delete_acls as deleting
from penstock.kafka.wire.messages import describe_acls as describing
from penstock.kafka.wire.messages import describe_user_scram_credentials as listing
from tests.kafka.raw import RawClient
from tests.kafka.server.test_logins import log_in

PASSWORDS = {"admin": "admin-password", "alice": "alice-password"}
TOPIC, LITERAL, PREFIXED, ANY, READ, ALLOW = 2, 3, 4, 1, 3, 3
SHA_256 = 1


@pytest.fixture(scope="module")
def client() -> Iterator[RawClient]:
    limits = Limits(max_acls=20, max_users=4)
    with Broker(http=None, users=PASSWORDS, limits=limits) as broker, RawClient(broker) as client:
        log_in(client)
        yield client


def creation(name: str = "orders", **other: Any) -> creating.AclCreation:
    fields = {
        "resource_type": TOPIC,
        "resource_name": name,
        "resource_pattern_type": LITERAL,
        "principal": "User:alice",
        "host": "*",
        "operation": READ,
        "permission_type": ALLOW,
    }
    return creating.AclCreation(**{**fields, **other})


def create(client: RawClient, *creations: creating.AclCreation) -> list[creating.AclCreationResult]:
    answer = client.call(ApiKey.CREATE_ACLS, 3, creating.CreateAclsRequest(creations=list(creations)))
    assert isinstance(answer, creating.CreateAclsResponse)
    return answer.results


def names(client: RawClient) -> list[tuple[str, int]]:
    request = describing.DescribeAclsRequest(
        resource_type_filter=ANY, pattern_type_filter=ANY, operation=ANY, permission_type=ANY
    )
    answer = client.call(ApiKey.DESCRIBE_ACLS, 3, request)
    assert isinstance(answer, describing.DescribeAclsResponse)
    assert answer.error_code == ErrorCode.NONE
    return [(one.resource_name, len(one.acls)) for one in answer.resources]


def delete(client: RawClient, *filters: deleting.DeleteAclsFilter) -> list[deleting.DeleteAclsFilterResult]:
    answer = client.call(ApiKey.DELETE_ACLS, 3, deleting.DeleteAclsRequest(filters=list(filters)))
    assert isinstance(answer, deleting.DeleteAclsResponse)
    return answer.filter_results


def every(**fields: Any) -> deleting.DeleteAclsFilter:
    defaults = {
        "resource_type_filter": ANY,
        "pattern_type_filter": ANY,
        "operation": ANY,
        "permission_type": ANY,
    }
    return deleting.DeleteAclsFilter(**{**defaults, **fields})


def test_a_wrong_rule_is_refused_and_the_others_are_made(client: RawClient) -> None:
    results = create(
        client,
        creation("mine"),
        creation("mine"),
        creation("", principal="User:alice"),
        creation(principal="alice"),
        creation(host="example.org"),
        creation(operation=ANY),
        creation(resource_type=99),
        creation("mine", operation=4),
    )
    assert [result.error_code for result in results] == [0, 0, *[ErrorCode.INVALID_REQUEST] * 5, 0]
    assert all(result.error_message for result in results if result.error_code)
    assert names(client) == [("mine", 2)]
    [deleted] = delete(client, every(resource_name_filter="mine"))
    assert len(deleted.matching_acls) == 2
    assert names(client) == []


def test_more_rules_than_the_limit_are_refused_together(client: RawClient) -> None:
    results = create(client, *(creation(f"topic-{number}") for number in range(21)))
    assert {result.error_code for result in results} == {ErrorCode.POLICY_VIOLATION}
    assert names(client) == []


def test_filters_of_one_request_are_bounded(client: RawClient) -> None:
    results = delete(client, *[every()] * (MAX_FILTERS + 1))
    assert {result.error_code for result in results} == {ErrorCode.INVALID_REQUEST}
    [unknown] = delete(client, every(operation=0))
    assert unknown.error_code == ErrorCode.INVALID_REQUEST


def test_without_login_there_are_no_rules() -> None:
    with Broker(http=None) as broker, RawClient(broker) as client:
        assert create(client, creation())[0].error_code == ErrorCode.SECURITY_DISABLED
        assert delete(client, every())[0].error_code == ErrorCode.SECURITY_DISABLED
        answer: Any = client.call(ApiKey.DESCRIBE_ACLS, 1, describing.DescribeAclsRequest())
        assert answer.error_code == ErrorCode.SECURITY_DISABLED
        assert "--require-login" in answer.error_message


def upsertion(user: str, **other: Any) -> altering.ScramCredentialUpsertion:
    fields = {"mechanism": SHA_256, "iterations": 4096, "salt": b"s" * 16, "salted_password": b"p" * 32}
    return altering.ScramCredentialUpsertion(name=user, **{**fields, **other})


def alter(
    client: RawClient,
    *upsertions: altering.ScramCredentialUpsertion,
    deletions: tuple[altering.ScramCredentialDeletion, ...] = (),
) -> list[tuple[str, int]]:
    request = altering.AlterUserScramCredentialsRequest(
        deletions=list(deletions), upsertions=list(upsertions)
    )
    answer = client.call(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, request)
    assert isinstance(answer, altering.AlterUserScramCredentialsResponse)
    return [(result.user, result.error_code) for result in answer.results]


def test_users_are_made_listed_and_deleted(client: RawClient) -> None:
    assert alter(client, upsertion("bob")) == [("bob", ErrorCode.NONE)]
    request = listing.DescribeUserScramCredentialsRequest(
        users=[listing.UserName(name="bob"), listing.UserName(name="nobody")]
    )
    answer: Any = client.call(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, request)
    found, missing = answer.results
    assert [(info.mechanism, info.iterations) for info in found.credential_infos] == [(SHA_256, 4096)]
    assert missing.error_code == ErrorCode.RESOURCE_NOT_FOUND
    gone = altering.ScramCredentialDeletion(name="bob", mechanism=SHA_256)
    assert alter(client, deletions=(gone,)) == [("bob", ErrorCode.NONE)]
    assert alter(client, deletions=(gone,)) == [("bob", ErrorCode.RESOURCE_NOT_FOUND)]


@pytest.mark.parametrize(
    ("mistake", "code"),
    [
        (upsertion("carol", iterations=1), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("carol", salt=b"s"), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("carol", salted_password=b"p"), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("carol", mechanism=3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (upsertion("*"), ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ],
)
def test_a_mistake_concerns_its_user_only(
    client: RawClient, mistake: altering.ScramCredentialUpsertion, code: ErrorCode
) -> None:
    assert alter(client, upsertion("alice"), mistake) == [("alice", ErrorCode.NONE), (mistake.name, code)]


def test_changes_of_one_request_are_bounded_and_unique(client: RawClient) -> None:
    assert alter(client, upsertion("alice"), upsertion("alice")) == [("alice", ErrorCode.DUPLICATE_RESOURCE)]
    [(_, code)] = alter(client, *(upsertion(f"user-{number}") for number in range(MAX_CHANGES + 1)))
    assert code == ErrorCode.INVALID_REQUEST


def test_users_beyond_the_limit_are_refused(client: RawClient) -> None:
    outcomes = alter(client, *(upsertion(f"user-{number}") for number in range(3)))
    assert [code for _, code in outcomes] == [0, 0, ErrorCode.UNACCEPTABLE_CREDENTIAL]
