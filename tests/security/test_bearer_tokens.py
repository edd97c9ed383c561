"""Tokens of identity providers: every algorithm, every claim, and forgeries."""

import contextlib
import json

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.security.bearer_tokens import (
    MAX_GROUPS,
    MAX_JWKS_BYTES,
    MAX_KEYS,
    MAX_TOKEN_BYTES,
    TokenSettings,
    VerifiedToken,
    key_id,
    parse_jwks,
    verify_token,
)
from penstock.security.errors import AuthenticationError, UnknownKey
from tests.security.identity_provider import (
    ALGORITHMS,
    CLAIMS,
    NOW_MS,
    NOW_S,
    SETTINGS,
    forged,
    jwk,
    jwks,
    part,
    private_key,
    signed_by_secret,
    token,
)

KINDS = ("rsa", "p256", "p384", "p521", "ed25519", "ed448")


@pytest.fixture(scope="module")
def keys():
    return parse_jwks(jwks(*map(jwk, KINDS)))


def refusal(keys, text, settings=SETTINGS, now_ms=NOW_MS) -> str:
    with pytest.raises(AuthenticationError) as caught:
        verify_token(text, keys, settings, now_ms)
    assert caught.value.message == "invalid credentials"
    return caught.value.reason


# --- honest tokens


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_is_accepted(keys, algorithm) -> None:
    verified = verify_token(token(algorithm), keys, SETTINGS, NOW_MS)
    assert verified == VerifiedToken("User:alice", ("Group:ops",), (NOW_S + 600) * 1000)


def test_ed448_is_eddsa_too(keys) -> None:
    assert verify_token(token("EdDSA", "ed448"), keys, SETTINGS, NOW_MS).principal == "User:alice"


@pytest.mark.parametrize("audience", ["penstock", ["other", "penstock"]])
def test_the_audience_may_be_one_of_several(keys, audience) -> None:
    assert verify_token(token(aud=audience), keys, SETTINGS, NOW_MS)


@pytest.mark.parametrize(
    ("claim", "claims", "groups"),
    [
        ("", {}, ()),
        ("groups", {"groups": None}, ()),
        ("groups", {"groups": []}, ()),
        ("groups", {"groups": "ops"}, ("Group:ops",)),
        ("groups", {"groups": ["ops", "dev team"]}, ("Group:ops", "Group:dev team")),
        ("realm_access.roles", {"realm_access": {"roles": ["a"]}}, ("Group:a",)),
        ("https://id.example/groups", {"https://id.example/groups": ["a"]}, ("Group:a",)),
        ("a.b", {"a": "text"}, ()),
    ],
)
def test_groups_come_from_a_claim_or_a_path(keys, claim, claims, groups) -> None:
    settings = TokenSettings(issuer=SETTINGS.issuer, audience=SETTINGS.audience, groups_claim=claim)
    assert verify_token(token(**claims), keys, settings, NOW_MS).groups == groups


def test_the_subject_comes_from_the_configured_claim(keys) -> None:
    settings = TokenSettings(issuer=SETTINGS.issuer, audience="penstock", subject_claim="email")
    assert verify_token(token(email="a@b.example"), keys, settings, NOW_MS).principal == "User:a@b.example"


def test_without_a_key_id_the_only_key_is_taken() -> None:
    text = token("ES256", headers={"kid": None})
    assert key_id(text) is None
    assert verify_token(text, parse_jwks(jwks(jwk("p256", kid=None))), SETTINGS, NOW_MS)
    assert verify_token(text, parse_jwks(jwks(jwk("p256"))), SETTINGS, NOW_MS)
    with pytest.raises(UnknownKey):
        verify_token(text, parse_jwks(jwks(jwk("p256"), jwk("p384"))), SETTINGS, NOW_MS)


# --- forgeries


def test_a_token_without_a_signature_is_refused(keys) -> None:
    for name in ("none", "None", "NONE", "nOnE"):
        assert "not accepted" in refusal(keys, forged({"alg": name, "kid": "rsa"}))
    for algorithm, kind in (("RS256", "rsa"), ("ES256", "p256"), ("EdDSA", "ed25519")):
        assert "signature" in refusal(keys, forged({"alg": algorithm, "kid": kind}))


def test_a_public_key_is_no_shared_secret(keys) -> None:
    """HS256 with the public key as the secret: everybody knows it."""
    public = private_key("rsa").public_key()
    forms = [
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        json.dumps(jwk("rsa")).encode(),
        b"",
    ]
    for secret in forms:
        for algorithm in ("HS256", "HS384", "HS512"):
            assert "not accepted" in refusal(keys, signed_by_secret(secret, algorithm, kid="rsa"))
        assert "signature" in refusal(keys, signed_by_secret(secret, "RS256", kid="rsa"))


def test_a_shared_secret_in_the_key_set_is_no_key() -> None:
    secret = {"kty": "oct", "k": part(b"secret" * 8), "kid": "s", "alg": "HS256"}
    keys = parse_jwks(jwks(secret, jwk("p256")))
    assert "not accepted" in refusal(keys, signed_by_secret(b"secret" * 8, kid="s"))
    with pytest.raises(AuthenticationError, match="no key"):
        parse_jwks(jwks(secret))


@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [("RS256", "p256"), ("ES256", "rsa"), ("ES384", "p256"), ("EdDSA", "rsa"), ("PS256", "ed25519")],
)
def test_the_algorithm_must_fit_the_key(keys, algorithm, kind) -> None:
    text = forged({"alg": algorithm, "kid": kind}, signature=bytes(64))
    assert refusal(keys, text) == f"the token's algorithm {algorithm} does not fit its key"


def test_a_key_for_one_algorithm_serves_no_other() -> None:
    keys = parse_jwks(jwks(jwk("rsa", alg="PS256")))
    assert verify_token(token("PS256"), keys, SETTINGS, NOW_MS)
    assert "does not fit" in refusal(keys, token("RS256"))


def test_a_changed_token_is_refused(keys) -> None:
    header, _, signature = token().split(".")
    admin = part({**CLAIMS, "sub": "admin"})
    assert "signature" in refusal(keys, f"{header}.{admin}.{signature}")
    swapped = part({"alg": "RS384", "kid": "rsa"})
    assert "signature" in refusal(keys, f"{swapped}.{part(CLAIMS)}.{signature}")


def test_a_token_of_another_key_is_refused(keys) -> None:
    assert "signature" in refusal(keys, token(kind="rsa-2", headers={"kid": "rsa"}))
    with pytest.raises(UnknownKey):
        verify_token(token(kind="rsa-2"), keys, SETTINGS, NOW_MS)


def test_a_key_in_the_token_itself_is_ignored(keys) -> None:
    """`jwk`, `jku` and `x5u` headers would let an attacker bring a key along."""
    for headers in ({"jwk": jwk("rsa-2")}, {"jku": "https://evil.example"}, {"x5u": "https://evil.example"}):
        assert "signature" in refusal(keys, token(kind="rsa-2", headers={"kid": "rsa", **headers}))


def test_extensions_that_must_be_understood_are_refused(keys) -> None:
    assert "crit" in refusal(keys, forged({"alg": "RS256", "kid": "rsa", "crit": ["b64"], "b64": False}))


# --- claims


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"iss": "https://evil.example"}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"iss": SETTINGS.issuer + "/"}, "issuer"),
        ({"aud": "another"}, "audience"),
        ({"aud": None}, "audience"),
        ({"aud": []}, "audience"),
        ({"aud": ["penstock2"]}, "audience"),
        ({"exp": None}, "never expires"),
        ({"exp": NOW_S - 31}, "expired"),
        ({"nbf": NOW_S + 31}, "not valid yet"),
        ({"iat": NOW_S + 31}, "not valid yet"),
        ({"sub": None}, "not a user's name"),
        ({"sub": ""}, "not a user's name"),
        ({"sub": "*"}, "not a user's name"),
        ({"sub": "ANONYMOUS"}, "not a user's name"),
        ({"sub": "a\nb"}, "not a user's name"),
        ({"sub": "x" * 2000}, "not a user's name"),
        ({"groups": ["*"]}, "not a list of groups"),
        ({"groups": [1]}, "not a list of groups"),
        ({"groups": {"a": 1}}, "not a list of groups"),
        ({"groups": ["g"] * (MAX_GROUPS + 1)}, "groups"),
    ],
    ids=str,
)
def test_a_wrong_claim_is_refused(keys, claims, why) -> None:
    assert why in refusal(keys, token(**claims))


@pytest.mark.parametrize("value", [True, "soon", -1, 1e300, 10**15, [], {}], ids=str)
@pytest.mark.parametrize("claim", ["exp", "nbf", "iat"])
def test_a_time_is_a_number_that_can_be_one(keys, claim, value) -> None:
    text = _signed({**CLAIMS, claim: value})
    assert refusal(keys, text) == f"the token's claim {claim!r} is not a time"


def _signed(claims):
    """PyJWT would not make some of these."""
    from jwt import PyJWS

    return PyJWS().encode(json.dumps(claims).encode(), private_key("p256"), "ES256", headers={"kid": "p256"})


def test_clocks_may_differ_by_the_skew(keys) -> None:
    assert verify_token(token(exp=NOW_S - 29), keys, SETTINGS, NOW_MS)
    assert verify_token(token(nbf=NOW_S + 30, iat=NOW_S + 30), keys, SETTINGS, NOW_MS)
    exact = TokenSettings(issuer=SETTINGS.issuer, audience="penstock", clock_skew_ms=0)
    assert "expired" in refusal(keys, token(exp=NOW_S), exact)
    assert verify_token(token(exp=NOW_S), keys, exact, NOW_MS - 1)
    assert verify_token(token(exp=NOW_S + 0.5), keys, exact, NOW_MS).expires_ms == NOW_MS + 500


def test_a_payload_that_is_no_object_is_refused(keys) -> None:
    for payload in ("text", [1], 1, None):
        assert refusal(keys, _signed(payload))


@pytest.mark.parametrize(
    "changes", [{"issuer": ""}, {"audience": ""}, {"subject_claim": ""}, {"clock_skew_ms": -1}]
)
def test_issuer_and_audience_are_required(changes) -> None:
    given = {"issuer": "https://id.example", "audience": "penstock", **changes}
    with pytest.raises(ConfigError, match="oidc"):
        TokenSettings(**given).validate()
    SETTINGS.validate()


# --- sizes and garbage


def test_a_huge_token_is_refused_before_it_is_decoded(keys) -> None:
    assert "bytes" in refusal(keys, token(pad="x" * MAX_TOKEN_BYTES))
    assert "bytes" in refusal(keys, "." * (MAX_TOKEN_BYTES + 1))
    assert verify_token(token(pad="x" * (MAX_TOKEN_BYTES // 2)), keys, SETTINGS, NOW_MS)


def test_deeply_nested_json_is_refused(keys) -> None:
    deep = b"[" * 8_000 + b"]" * 4_000
    assert "not a JWT" in refusal(keys, f"{part(deep)[:12_000]}.e30.x")
    with pytest.raises(AuthenticationError, match="not a JWKS"):
        parse_jwks(b'{"keys": ' + b"[" * 100_000)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=80) | st.lists(st.text("aA0-_=é.", max_size=8), max_size=5).map(".".join))
def test_any_text_is_refused_with_the_declared_error(keys, text) -> None:
    assert refusal(keys, text)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["alg", "kid", "crit", "typ"]),
        st.sampled_from(["RS256", "rsa", "ES256", "p256", "none", "HS256", 1, None, [], {}, "é"]),
    ),
    st.binary(max_size=20),
    st.binary(max_size=300),
)
def test_any_header_payload_and_signature_are_refused(keys, header, payload, signature) -> None:
    assert refusal(keys, forged(header, payload, signature))


# --- key sets


def test_keys_that_cannot_verify_are_skipped() -> None:
    keys = parse_jwks(
        jwks(
            jwk("p256"),
            jwk("rsa", use="enc"),
            jwk("rsa-weak"),
            jwk("secp256k1"),
            jwk("p384", alg="ES256"),
            jwk("p521", x="!"),
            {"kty": "new", "kid": "n"},
            {},
        )
    )
    assert list(keys.keys) == ["p256"]


def test_a_private_part_in_a_key_set_is_ignored() -> None:
    keys = parse_jwks(jwks(jwk("ed25519", d=part(bytes(32)))))
    assert verify_token(token("EdDSA"), keys, SETTINGS, NOW_MS)


def test_the_first_key_of_an_id_counts() -> None:
    keys = parse_jwks(jwks(jwk("rsa"), jwk("rsa-2", kid="rsa")))
    assert verify_token(token(), keys, SETTINGS, NOW_MS)


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"{}",
        b"[]",
        b'{"keys": {}}',
        b'{"keys": [1]}',
        b'{"keys": []}',
        b"\xff",
        b'{"keys": [' + b"{}," * MAX_KEYS + b"{}]}",
        b" " * (MAX_JWKS_BYTES + 1),
    ],
    ids=range(9),
)
def test_a_document_without_usable_keys_is_refused(document) -> None:
    with pytest.raises(AuthenticationError):
        parse_jwks(document)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from(["RSA", "EC", "OKP", "P-256"]),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
FIELDS = st.sampled_from(["kty", "crv", "x", "y", "n", "e", "kid", "alg", "use", "key_ops"])


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=60)
    | st.lists(st.dictionaries(FIELDS, JSON), max_size=3).map(lambda entries: jwks(*entries))
    | st.dictionaries(FIELDS, JSON, max_size=3).map(lambda changes: jwks({**jwk("p256"), **changes}))
)
def test_any_document_is_a_key_set_or_refused(document) -> None:
    with contextlib.suppress(AuthenticationError):
        assert parse_jwks(document).keys
