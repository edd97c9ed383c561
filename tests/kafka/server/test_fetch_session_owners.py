"""Fetch sessions of users: no user reads by another user's session, or by rights that were taken away."""

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from penstock import Broker
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tests.kafka.raw import PATIENCE_SECONDS, RawClient
from tests.kafka.requests import ask, create
from tests.kafka.server.test_logins import PASSWORDS, administrator, log_in

TOPIC = "read-in-sessions"
RULE = (ResourceType.TOPIC, TOPIC, ResourcePatternType.LITERAL, "User:alice", "*")
BINDING = AclBinding(*RULE, AclOperation.READ, AclPermissionType.ALLOW)
LONG_MS = 600_000


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(http=None, users=PASSWORDS) as broker:
        with RawClient(broker) as own:
            log_in(own)
            create(own, TOPIC, replicas=1)
        admin = administrator(broker)
        admin.create_acls([BINDING])[BINDING].result(PATIENCE_SECONDS)
        yield broker


def request(session_id: int, epoch: int, *, wait_ms: int = 0) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [] if epoch > 0 else [FetchTopic(topic=TOPIC, partitions=[partition])]
    return FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, session_id=session_id, session_epoch=epoch, topics=topics
    )


def opened(client: RawClient, user: str) -> int:
    log_in(client, user)
    return ask(client, ApiKey.FETCH, 12, request(0, 0), FetchResponse).session_id


def lose_permission(broker: Broker) -> None:
    wanted = AclBindingFilter(*RULE, AclOperation.READ, AclPermissionType.ALLOW)
    admin = administrator(broker)
    admin.delete_acls([wanted])[wanted].result(PATIENCE_SECONDS)


def codes(answer: FetchResponse) -> list[int]:
    return [row.error_code for topic in answer.responses for row in topic.partitions]


def test_a_session_of_another_user_is_not_found_and_goes_on(broker: Broker) -> None:
    with RawClient(broker) as alice, RawClient(broker) as other:
        session_id = opened(alice, "alice")
        log_in(other)
        for epoch in (1, -1, 0):
            answer = ask(other, ApiKey.FETCH, 12, request(session_id, epoch), FetchResponse)
            not_found = answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            assert not_found == (epoch == 1)
            assert answer.session_id != session_id
        assert (
            ask(alice, ApiKey.FETCH, 12, request(session_id, 1), FetchResponse).error_code == ErrorCode.NONE
        )


def test_a_session_hears_at_once_that_a_permission_was_taken_away(broker: Broker) -> None:
    with RawClient(broker) as alice:
        session_id = opened(alice, "alice")
        alice.request(ApiKey.FETCH, 12, request(session_id, 1, wait_ms=LONG_MS))
        lose_permission(broker)
        _, answer = alice.answer(ApiKey.FETCH, 12)
        assert isinstance(answer, FetchResponse)
        assert codes(answer) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]


def test_a_permission_that_was_lost_between_two_requests_is_noticed(broker: Broker) -> None:
    with RawClient(broker) as alice:
        session_id = opened(alice, "alice")
        assert codes(ask(alice, ApiKey.FETCH, 12, request(session_id, 1), FetchResponse)) == []
        lose_permission(broker)
        answer = ask(alice, ApiKey.FETCH, 12, request(session_id, 2), FetchResponse)
        assert codes(answer) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
