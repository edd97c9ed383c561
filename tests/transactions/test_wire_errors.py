"""Old versions get the codes that they know."""

import pytest

from penstock.errors import ErrorCode
from penstock.transactions import TransactionApi, wire_error

FENCED, OLD_FENCED = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
ABORTABLE, STATE = ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE
GROUP_ERRORS = [ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.STALE_MEMBER_EPOCH]


@pytest.mark.parametrize(
    ("api", "first"),
    [
        (TransactionApi.INIT_PRODUCER_ID, 4),
        (TransactionApi.ADD_PARTITIONS_TO_TXN, 2),
        (TransactionApi.ADD_OFFSETS_TO_TXN, 2),
        (TransactionApi.END_TXN, 2),
    ],
)
def test_a_fenced_producer_gets_the_old_code_in_old_versions(api: TransactionApi, first: int) -> None:
    codes = [wire_error(FENCED, api, version) for version in range(7)]
    assert codes == [OLD_FENCED] * first + [FENCED] * (7 - first)


@pytest.mark.parametrize("api", [TransactionApi.PRODUCE, TransactionApi.TXN_OFFSET_COMMIT])
def test_produce_and_offset_commits_have_only_the_old_code(api: TransactionApi) -> None:
    assert {wire_error(FENCED, api, version) for version in range(14)} == {OLD_FENCED}


@pytest.mark.parametrize(
    ("api", "first"),
    [
        (TransactionApi.PRODUCE, 11),
        (TransactionApi.INIT_PRODUCER_ID, 5),
        (TransactionApi.ADD_PARTITIONS_TO_TXN, 5),
        (TransactionApi.ADD_OFFSETS_TO_TXN, 4),
        (TransactionApi.END_TXN, 4),
        (TransactionApi.TXN_OFFSET_COMMIT, 4),
    ],
)
def test_abortable_is_told_only_where_a_version_knows_it(api: TransactionApi, first: int) -> None:
    codes = [wire_error(ABORTABLE, api, version) for version in range(14)]
    assert codes == [STATE] * first + [ABORTABLE] * (14 - first)


@pytest.mark.parametrize("error", GROUP_ERRORS)
def test_errors_of_the_group_are_told_only_where_a_version_knows_them(error: ErrorCode) -> None:
    codes = [wire_error(error, TransactionApi.TXN_OFFSET_COMMIT, version) for version in range(8)]
    assert codes == [ErrorCode.ILLEGAL_GENERATION] * 6 + [error] * 2


@pytest.mark.parametrize("api", TransactionApi)
def test_all_other_codes_are_the_same_in_all_versions(api: TransactionApi) -> None:
    for error in set(ErrorCode) - {FENCED, ABORTABLE, *GROUP_ERRORS}:
        assert wire_error(error, api, 0) is error
