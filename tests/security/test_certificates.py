"""Principals from the subjects of certificates, by Kafka's mapping rules."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.security.certificates import (
    MAX_RULES_CHARACTERS,
    MAX_SUBJECT_CHARACTERS,
    certificate_principal,
    distinguished_name,
    parse_mapping_rules,
)
from penstock.security.errors import AuthenticationError

SUBJECT = "CN=Duke,OU=ServiceUsers,O=Unknown,L=Unknown,ST=Unknown,C=Unknown"


def principal(rules, name=SUBJECT):
    return certificate_principal(name, parse_mapping_rules(rules))


@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        ("", SUBJECT, SUBJECT),
        ("DEFAULT", SUBJECT, SUBJECT),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", SUBJECT, "Duke"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L", SUBJECT, "duke"),
        ("RULE:^CN=(.*?),.*$/$1/U,DEFAULT", SUBJECT, "DUKE"),
        (
            r"RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U",
            "cn=kafka,ou=SME,dc=mycp,dc=com",
            "KAFKA@SME",
        ),
        ("RULE:^CN=(\\w+)$/x/, RULE:^CN=(.*?),OU.*$/user-$1/ , DEFAULT", SUBJECT, "user-Duke"),
        ("RULE:^OU=nobody$/x/L,DEFAULT", SUBJECT, SUBJECT),
        (r"RULE:^CN=a\/b$/slash/", "CN=a/b", "slash"),
        ("RULE:CN=(.),(.*)/$2$12$9/", "CN=x,y", "yx2$9"),
    ],
    ids=lambda value: value[:30],
)
def test_the_first_rule_that_matches_the_whole_subject_gives_the_name(rules, name, expected) -> None:
    assert principal(rules, name) == f"User:{expected}"


def test_a_subject_that_no_rule_matches_is_refused() -> None:
    with pytest.raises(AuthenticationError, match="no mapping rule"):
        principal("RULE:^CN=admin$/admin/")


def test_a_rule_matches_the_whole_subject_and_not_a_part_of_it() -> None:
    """Else a certificate for CN=admin.evil would be the admin."""
    with pytest.raises(AuthenticationError):
        principal("RULE:CN=admin/admin/", "CN=admin.evil")


@pytest.mark.parametrize("rules", ["RULE:^CN=.*$/*/", "RULE:^CN=.*$/ANONYMOUS/", "RULE:^CN=.*$//"])
def test_a_rule_cannot_make_a_client_everybody_or_nobody(rules) -> None:
    with pytest.raises(AuthenticationError, match="does not map"):
        principal(rules)


@pytest.mark.parametrize(
    "rules", ["default", "RULE:x/y", "RULE:(/x/", "DEFAULT;DEFAULT", "RULE:a/b/X", ",DEFAULT"]
)
def test_a_wrong_setting_is_refused_by_its_name(rules) -> None:
    with pytest.raises(ConfigError, match="principal"):
        parse_mapping_rules(rules)


def test_the_setting_and_the_subject_have_a_longest_length() -> None:
    with pytest.raises(ConfigError, match="at most"):
        parse_mapping_rules("DEFAULT," * MAX_RULES_CHARACTERS)
    assert principal("DEFAULT", "x" * MAX_SUBJECT_CHARACTERS)
    with pytest.raises(AuthenticationError, match="characters"):
        principal("DEFAULT", "x" * (MAX_SUBJECT_CHARACTERS + 1))


@given(st.text(alphabet="RULE:DFAT/$1,^(.*)\\ LU", max_size=60), st.text(max_size=60))
def test_any_rules_and_any_subject_give_a_principal_or_a_declared_error(rules, name) -> None:
    with contextlib.suppress(ConfigError, AuthenticationError):
        assert certificate_principal(name, parse_mapping_rules(rules)).startswith("User:")


def test_a_subject_is_written_from_its_end_with_short_names() -> None:
    subject = (
        (("countryName", "DE"),),
        (("organizationName", "Example, Inc."),),
        (("organizationalUnitName", "a"), ("organizationalUnitName", "b")),
        (("commonName", "web"),),
    )
    assert distinguished_name(subject) == "CN=web,OU=a+OU=b,O=Example\\, Inc.,C=DE"


@pytest.mark.parametrize(
    ("value", "written"),
    [("#x", "\\#x"), (" x", "\\ x"), ("x ", "x\\ "), (" ", "\\ "), ('a"b\\c', 'a\\"b\\\\c'), ("a=b", "a=b")],
)
def test_special_characters_of_a_subject_are_escaped(value, written) -> None:
    """Else CN="x,O=admins" would look like a member of admins."""
    assert distinguished_name(((("commonName", value),),)) == f"CN={written}"
