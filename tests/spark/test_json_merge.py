"""A field more for a JSON object."""

import json

import pytest

from penstock.spark.json_merge import with_field


@pytest.mark.parametrize(
    ("value", "added", "expected"),
    [
        (b'{"a": 1.50}', '{"b": 2.0}', b'{"a": 1.50,"n":{"b": 2.0}}'),
        (b' {"a": 1 } \n', "text", b' {"a": 1,"n":"text"}'),
        (b" { } ", None, b' {"n":null}'),
        (b"{}", '"quoted"', b'{"n":"quoted"}'),
        (b"{}", "NaN", b'{"n":"NaN"}'),
        (b"{}", "1 2", b'{"n":"1 2"}'),
        (b"{}", 'say "hi"\n', b'{"n":"say \\"hi\\"\\n"}'),
    ],
)
def test_the_field_is_added_and_the_rest_stays_as_it_was(
    value: bytes, added: str | None, expected: bytes
) -> None:
    assert with_field(value, "n", added) == expected
    json.loads(expected)


@pytest.mark.parametrize(
    "value",
    [None, b"", b"text", b"[1]", b"5", b'{"a": 1} {"b": 2}', b'{"a": NaN}', b"{", b"\xff{}", b"{" * 5000],
)
def test_a_value_that_is_no_object_stays_as_it_is(value: bytes | None) -> None:
    assert with_field(value, "n", "1") == value
