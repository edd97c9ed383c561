"""SCRAM: the RFC's examples, another implementation as the oracle, and clients that cheat."""

import base64

import pytest
import scramp
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.security.credentials import Decoys, make_credential, salted_password
from penstock.security.errors import AuthenticationError
from penstock.security.exchange import Accepted, Challenge, Rejected
from penstock.security.scram import MAX_CLIENT_ITERATIONS, ScramClient, ScramServer
from penstock.security.scram_messages import MAX_MESSAGE_BYTES, MAX_NONCE_CHARACTERS, MAX_USER_CHARACTERS
from tests.security.logins import DECOYS, ITERATIONS, SALT, SERVER_NONCE, SHA_256, SHA_512, USERS, store

MECHANISMS = pytest.mark.parametrize("mechanism", [SHA_256, SHA_512], ids=lambda one: one.sasl_name)


def server(mechanism=SHA_256, users=USERS, nonce=SERVER_NONCE):
    return ScramServer(mechanism, users, DECOYS, nonce)


def login(user, password, mechanism=SHA_256, users=USERS):
    exchange, client = server(mechanism, users), ScramClient(mechanism, user, password, "client-nonce")
    challenge = exchange.step(client.first())
    assert isinstance(challenge, Challenge)
    result = exchange.step(client.final(challenge.data))
    if isinstance(result, Accepted):
        client.verify(result.data)
    return result


# --- the RFC's example, and the oracle

CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
RFC_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
RFC_SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
RFC_7677 = [
    b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
]


def test_both_sides_speak_the_example_of_rfc_7677() -> None:
    credential = make_credential("pencil", RFC_SALT, 4096, SHA_256)
    exchange = server(users=lambda name, _: credential if name == "user" else None, nonce=RFC_NONCE)
    client = ScramClient(SHA_256, "user", "pencil", CLIENT_NONCE)
    assert client.first() == RFC_7677[0]
    assert exchange.step(RFC_7677[0]) == Challenge(RFC_7677[1])
    assert client.final(RFC_7677[1]) == RFC_7677[2]
    assert exchange.step(RFC_7677[2]) == Accepted(RFC_7677[3], "User:user")
    client.verify(RFC_7677[3])


NAMES = st.text("abcä,=Z9-._", min_size=1, max_size=12)


@MECHANISMS
@settings(max_examples=15, deadline=None)
@given(name=NAMES, password=st.text("aZ9 !ßé\u00a0ª", min_size=1, max_size=12))
def test_a_client_of_another_implementation_logs_in(mechanism, name, password) -> None:
    credential = make_credential(password, SALT, ITERATIONS, mechanism)
    exchange = server(mechanism, lambda user, _: credential if user == name else None)
    client = scramp.ScramClient([mechanism.sasl_name], name, password)
    client.set_server_first(exchange.step(client.get_client_first().encode()).data.decode())
    result = exchange.step(client.get_client_final().encode())
    assert isinstance(result, Accepted)
    assert result.principal == f"User:{name}"
    client.set_server_final(result.data.decode())


@MECHANISMS
@settings(max_examples=15, deadline=None)
@given(name=NAMES, password=st.text("aZ9 !ßé\u00a0ª", min_size=1, max_size=12))
def test_a_server_of_another_implementation_accepts_the_client(mechanism, name, password) -> None:
    theirs = scramp.ScramMechanism(mechanism.sasl_name)
    info = theirs.make_auth_info(password, iteration_count=4096, salt=SALT)
    assert tuple(info)[:3] == (SALT, *_keys(password, mechanism))
    peer = theirs.make_server(lambda _user: info)
    client = ScramClient(mechanism, name, password, "client-nonce")
    peer.set_client_first(client.first().decode())
    peer.set_client_final(client.final(peer.get_server_first().encode()).decode())
    client.verify(peer.get_server_final().encode())


def _keys(password, mechanism):
    credential = make_credential(password, SALT, ITERATIONS, mechanism)
    return credential.stored_key, credential.server_key


# --- who gets in


@MECHANISMS
def test_the_right_password_is_accepted_and_a_wrong_one_is_not(mechanism) -> None:
    assert login("alice", "pencil-1234", mechanism).principal == "User:alice"
    assert login("alice", "eraser-1234", mechanism) == Rejected(
        "wrong password for User:alice", "invalid credentials"
    )


def test_a_client_sees_no_difference_between_an_unknown_user_and_a_wrong_password() -> None:
    wrong, unknown = login("alice", "x"), login("carol", "x")
    assert isinstance(unknown, Rejected)
    assert wrong.message == unknown.message
    assert "carol" not in unknown.reason, "people type passwords where the name belongs"


@MECHANISMS
def test_the_challenge_of_an_unknown_user_looks_like_any_other_and_stays_the_same(mechanism) -> None:
    def challenge(user, decoys=DECOYS):
        exchange = ScramServer(mechanism, USERS, decoys, SERVER_NONCE)
        return exchange.step(f"n,,n={user},r=abc".encode()).data.decode()

    known, unknown = challenge("alice"), challenge("carol")
    assert len(known) == len(unknown)
    assert known.rpartition(",")[2] == unknown.rpartition(",")[2] == "i=4096"
    assert challenge("carol") == unknown
    assert len({known, unknown, challenge("dave"), challenge("carol", Decoys(b"another"))}) == 4


def test_a_user_with_a_password_for_another_mechanism_is_like_an_unknown_one() -> None:
    only_512 = store(SHA_512, alice="pencil-1234")
    assert login("alice", "pencil-1234", SHA_512, only_512).principal == "User:alice"
    assert login("alice", "pencil-1234", SHA_256, only_512).message == "invalid credentials"


def test_a_decoy_is_computed_for_known_users_too() -> None:
    """Else the time to the challenge would tell."""
    asked = []

    class Counting(Decoys):
        def credential(self, user, mechanism):
            asked.append(user)
            return super().credential(user, mechanism)

    ScramServer(SHA_256, USERS, Counting(b"s"), "n").step(b"n,,n=alice,r=abc")
    assert asked == ["alice"]


def test_reserved_names_are_nobody() -> None:
    anybody = make_credential("pencil-1234", SALT, ITERATIONS, SHA_256)
    result = login("ANONYMOUS", "pencil-1234", users=lambda _name, _mechanism: anybody)
    assert isinstance(result, Rejected)


# --- clients that cheat


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", "begins with n,,"),
        (b"n,", "begins with n,,"),
        (b"n,,", "n="),
        (b"n,,n=alice", "r="),
        (b"n,,r=abc,n=alice", "n="),
        (b"n,,n=,r=abc", "n="),
        (b"n,,n=alice,r=", "r="),
        (b"n,,n=al=ice,r=abc", "=3D"),
        (b"n,,n=al=2cice,r=abc", "=2C"),
        (b"n,,n=alice,r=a b", "nonce"),
        (b"n,,n=alice,r=\xc3\xa4", "nonce"),
        (b"n,,n=\xff,r=abc", "UTF-8"),
        (b"n,,n=al\0ice,r=abc", "NUL"),
        (b"p=tls-unique,,n=alice,r=abc", "channel binding"),
        (b"x,,n=alice,r=abc", "channel binding"),
        (b"n,b=x,n=alice,r=abc", "a="),
        (b"n,,m=x,n=alice,r=abc", "extension"),
        (b"n,,n=alice,r=abc,m=x", "extension"),
        (b"n,,n=alice,r=abc,x", "extension"),
        (b"n,,n=alice,r=abc,tokenauth=true", "delegation tokens"),
        (b"n,,n=" + b"x" * (MAX_USER_CHARACTERS + 1) + b",r=abc", "characters"),
        (b"n,,n=alice,r=" + b"x" * (MAX_NONCE_CHARACTERS + 1), "nonce"),
        (b"n,,n=alice,r=abc,x=" + b"x" * MAX_MESSAGE_BYTES, "bytes"),
    ],
    ids=lambda value: value[:30] if isinstance(value, bytes) else value,
)
def test_a_first_message_that_is_not_scram_is_refused_with_a_reason(message, why) -> None:
    result = server().step(message)
    assert isinstance(result, Rejected)
    assert why in result.message


def test_a_client_may_name_itself_and_nobody_else_to_act_as() -> None:
    assert isinstance(server().step(b"n,a=alice,n=alice,r=abc"), Challenge)
    assert "another user" in server().step(b"n,a=bob,n=alice,r=abc").reason


def final_for(first, password="pencil-1234", change=lambda text: text):
    """What the server says to a login that begins with `first`, and whose proof is right for the changed message."""
    exchange = server()
    challenge = exchange.step(first.encode()).data
    bare = first.split(",", 2)[2]
    client = ScramClient(SHA_256, "alice", password, "abc")
    client._bare = bare
    header = base64.b64encode(first[: len(first) - len(bare)].encode()).decode()
    original = client.final(challenge).decode()
    without = change(original.rpartition(",p=")[0].replace("c=biws", f"c={header}"))
    credential = USERS("alice", SHA_256)
    message = f"{bare},{challenge.decode()},{without}".encode()
    proof = client._proof(salted_password(password, credential.salt, 4096, SHA_256), message)
    return exchange.step(f"{without},p={base64.b64encode(proof).decode()}".encode())


@pytest.mark.parametrize("first", ["n,,n=alice,r=abc", "y,,n=alice,r=abc", "n,a=alice,n=alice,r=abc,x=1"])
def test_every_allowed_header_logs_in(first) -> None:
    assert isinstance(final_for(first), Accepted)


@pytest.mark.parametrize("header", [b"y,,", b"n,a=alice,", b"p=tls-unique,,", b""])
def test_c_must_repeat_the_header_that_began_the_login(header) -> None:
    """Else an attacker in the middle could remove a channel binding, or the client's y. The proof itself is right."""
    encoded = base64.b64encode(header).decode()
    result = final_for("n,,n=alice,r=abc", change=lambda text: text.replace("c=biws", f"c={encoded}"))
    assert isinstance(result, Rejected)
    assert "c=" in result.message


@pytest.mark.parametrize("nonce", ["abc", "abcserver-nonc", "abcserver-nonceX", "xserver-nonce"])
def test_the_nonce_must_be_the_one_of_this_login(nonce) -> None:
    result = final_for("n,,n=alice,r=abc", change=lambda text: text.replace("abcserver-nonce", nonce))
    assert isinstance(result, Rejected)
    assert "nonce" in result.message


def test_an_extension_in_the_proof_must_not_be_mandatory() -> None:
    assert isinstance(final_for("n,,n=alice,r=abc", change=lambda text: f"{text},x=1"), Accepted)
    assert isinstance(final_for("n,,n=alice,r=abc", change=lambda text: f"{text},m=1"), Rejected)


def test_a_proof_is_good_for_one_login() -> None:
    exchange, client = server(), ScramClient(SHA_256, "alice", "pencil-1234", "abc")
    proof = client.final(exchange.step(client.first()).data)
    assert isinstance(exchange.step(proof), Accepted)
    assert "over" in exchange.step(proof).message
    replayed = server(nonce="another-nonce")
    replayed.step(client.first())
    assert isinstance(replayed.step(proof), Rejected)


def test_after_a_rejection_no_second_try_is_possible() -> None:
    exchange, client = server(), ScramClient(SHA_256, "alice", "pencil-1234", "abc")
    proof = client.final(exchange.step(client.first()).data)
    assert isinstance(exchange.step(b"c=biws,r=abcserver-nonce,p=AAAA"), Rejected)
    assert "over" in exchange.step(proof).message


@settings(deadline=None)
@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_bytes_are_answered(first, final) -> None:
    exchange = server()
    assert isinstance(exchange.step(first), Challenge | Rejected)
    assert isinstance(exchange.step(final), Rejected)


PIECES = st.lists(
    st.sampled_from(
        ["n", "y", "p=", ",", "=", "n=", "r=", "a=", "m=", "c=", "biws", "abc", "alice", "=2C", "=3D"]
    )
    | st.sampled_from(["AAAA==", "server-nonce", "\0", "\x01", "ä"]),
    max_size=14,
).map(lambda pieces: "".join(pieces).encode())


@settings(deadline=None, max_examples=300)
@given(PIECES, PIECES)
def test_almost_right_messages_are_answered(first, final) -> None:
    exchange = server()
    exchange.step(first)
    assert isinstance(exchange.step(final), Rejected)
    exchange = server()
    exchange.step(b"n,,n=alice,r=abc")
    assert isinstance(exchange.step(final), Rejected)


# --- servers that cheat


def client_after_first():
    client = ScramClient(SHA_256, "alice", "pencil-1234", "abc")
    client.first()
    return client


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"r=abcd,s=AAAAAAAAAAA=",
        b"r=abc,s=AAAAAAAAAAA=,i=4096",
        b"r=xyz,s=AAAAAAAAAAA=,i=4096",
        b"r=abcd,s=!,i=4096",
        b"r=abcd,s=AAAAAAAAAAA=,i=x",
        b"r=abcd,s=AAAAAAAAAAA=,i=4095",
        b"r=abcd,s=AAAAAAAAAAA=,i=%d" % (MAX_CLIENT_ITERATIONS + 1),
        b"r=abcd,s=AAAAAAAAAAA=,i=99999999999",
        b"m=x,r=abcd,s=AAAAAAAAAAA=,i=4096",
        b"\xff",
    ],
)
def test_the_client_refuses_a_challenge_that_is_wrong_weak_or_too_hard(challenge) -> None:
    with pytest.raises(AuthenticationError):
        client_after_first().final(challenge)


@pytest.mark.parametrize("final", [b"", b"v=AAAA", b"v=!", b"e=other-error", b"x", b"\xff"])
def test_the_client_refuses_a_server_that_does_not_know_the_password(final) -> None:
    client = client_after_first()
    with pytest.raises(AuthenticationError):
        client.verify(b"v=")
    client.final(b"r=abcd,s=AAAAAAAAAAA=,i=4096")
    with pytest.raises(AuthenticationError):
        client.verify(final)


@settings(deadline=None)
@given(st.binary(max_size=100))
def test_any_bytes_of_a_server_raise_the_declared_error_only(data) -> None:
    for method in (client_after_first().final, client_after_first().verify):
        with pytest.raises(AuthenticationError):
            method(data)
