"""Regular expressions of clients: the event loop waits for them, so none may be costly."""

import pytest

from penstock.errors import ErrorCode, KafkaError
from penstock.node.patterns import UNICODE_CLASSES_MAX, compile_pattern


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("orders-.*", "orders-eu"),
        ("(?i)ORDERS|mail", "orders"),
        (".{1,249}", "x" * 249),
        ("x" * 1_000, "x" * 1_000),
        (r"\p{Greek}" * UNICODE_CLASSES_MAX, "\N{GREEK SMALL LETTER BETA}" * UNICODE_CLASSES_MAX),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, name: str) -> None:
    compiled = compile_pattern(pattern, "Pattern")
    assert compiled.fullmatch(name) is not None
    assert compiled.fullmatch(name + "!" * 300) is None or pattern.endswith(".*")


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "not a regular expression"),
        (r"\PL{300}", "too large"),  # a program of megabytes
        ("(.{1,30}){1,30}", "instructions"),  # milliseconds for each name
        ("(?i)" + r"\PL" * 300, "classes of Unicode"),  # seconds to compile
        (r"\p{Greek}" * (UNICODE_CLASSES_MAX + 1), "classes of Unicode"),
    ],
)
def test_a_costly_pattern_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(KafkaError, match=why) as refused:
        compile_pattern(pattern, "Pattern")
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
