"""DescribeUserScramCredentials and AlterUserScramCredentials: the users and what is kept of their passwords.

Clients send a salted password, never the password itself. Both work without `--require-login` too, so that users can
be made before it is turned on.
"""

from collections import Counter

from penstock.cluster import access_decisions
from penstock.cluster.access_decisions import CredentialChange
from penstock.cluster.access_state import AccessState
from penstock.errors import ErrorCode, KafkaError, StorageError
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialUpsertion,
)
from penstock.kafka.wire.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from penstock.security.credentials import SCRAM_MECHANISMS, ScramMechanism, credential_from_salted

MAX_CHANGES = 1_000
"""In one request: each user is a change of the metadata of its own."""


def describe_user_scram_credentials(
    context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    try:
        access = context.cluster().access
    except KafkaError as refused:
        return DescribeUserScramCredentialsResponse(
            error_code=refused.code, error_message=refused.message, results=[]
        )
    wanted = sorted(access.users) if not request.users else [user.name for user in request.users]
    return DescribeUserScramCredentialsResponse(results=[_described(access, user) for user in wanted])


def _described(access: AccessState, user: str) -> DescribeUserScramCredentialsResult:
    infos = [
        CredentialInfo(mechanism=mechanism, iterations=found.iterations)
        for mechanism in SCRAM_MECHANISMS
        if (found := access.credential(user, mechanism)) is not None
    ]
    if not infos:
        return DescribeUserScramCredentialsResult(
            user=user,
            error_code=ErrorCode.RESOURCE_NOT_FOUND,
            error_message=f"there is no user {user[:100]!r}",
            credential_infos=[],
        )
    return DescribeUserScramCredentialsResult(user=user, credential_infos=infos)


async def alter_user_scram_credentials(
    context: RequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    """The changes of one user are made together, or none of them."""
    rows = [(row.name, row.mechanism) for row in request.deletions]
    rows += [(row.name, row.mechanism) for row in request.upsertions]
    twice = {name for (name, _), number in Counter(rows).items() if number > 1}
    results = []
    if len(rows) > MAX_CHANGES:
        message = f"{len(rows)} changes in one request: expected {MAX_CHANGES} at most"
        refused = AlterUserScramCredentialsResult(error_code=ErrorCode.INVALID_REQUEST, error_message=message)
        return AlterUserScramCredentialsResponse(results=[refused])
    for user in dict.fromkeys(name for name, _ in rows):
        result = AlterUserScramCredentialsResult(user=user)
        try:
            context.cluster()
            if user in twice:
                message = f"user {user[:100]!r}: one mechanism twice in a request"
                raise KafkaError(ErrorCode.DUPLICATE_RESOURCE, message)
            await _alter(context, request, user)
        except KafkaError as refused:
            result.error_code, result.error_message = refused.code, refused.message
        except StorageError as trouble:
            result.error_code, result.error_message = ErrorCode.KAFKA_STORAGE_ERROR, str(trouble)
        results.append(result)
    return AlterUserScramCredentialsResponse(results=results)


async def _alter(context: RequestContext, request: AlterUserScramCredentialsRequest, user: str) -> None:
    changes = [
        CredentialChange(user=user, mechanism=_mechanism(row.mechanism), credential=None)
        for row in request.deletions
        if row.name == user
    ]
    changes += [_upsertion(row) for row in request.upsertions if row.name == user]
    limits = context.node.config.limits
    await context.node.metadata.change(
        lambda state: access_decisions.alter_credentials(state, changes, limits)
    )


def _upsertion(row: ScramCredentialUpsertion) -> CredentialChange:
    mechanism = _mechanism(row.mechanism)
    credential = credential_from_salted(row.salted_password, row.salt, row.iterations, mechanism)
    return CredentialChange(user=row.name, mechanism=mechanism, credential=credential)


def _mechanism(number: int) -> ScramMechanism:
    if number not in SCRAM_MECHANISMS:
        message = f"mechanism {number}: expected 1 (SCRAM-SHA-256) or 2 (SCRAM-SHA-512)"
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, message)
    return ScramMechanism(number)
