"""The messages of SCRAM (RFC 5802), parsed and checked. All of them are lists of `letter=value` with commas.

    client-first    GS2 header, then bare:    n,,n=USER,r=NONCE[,extensions]
    server-first                              r=NONCE+SERVER NONCE,s=SALT,i=ITERATIONS
    client-final                              c=GS2 HEADER,r=NONCE+SERVER NONCE[,extensions],p=PROOF
    server-final                              v=SERVER SIGNATURE   or   e=ERROR

The GS2 header says what the client wants besides: a channel binding (`p=...`: refused, the mechanisms with -PLUS are
not offered; `y`: "I could, but the server did not offer it", which is true; `n`: no), and a name to act as.
An extension `m=` is one that must be understood: refused. Others are ignored, as the RFC says, except for Kafka's
`tokenauth`, which asks to log in by a delegation token.
"""

import base64
import binascii

import msgspec

from penstock.security.errors import MalformedMessage

MAX_MESSAGE_BYTES = 4_096
"""Each message of a client. The longest real one, with SHA-512 and a long user name, has 500 bytes."""
MAX_USER_CHARACTERS = 255
"""A user's name, as in RFC 4616."""
MAX_NONCE_CHARACTERS = 256
"""Clients send 18 to 36."""
TOKEN_AUTH = "tokenauth"
_NONCE_CHARACTERS = frozenset(map(chr, range(0x21, 0x7F))) - {","}


class ClientFirst(msgspec.Struct, frozen=True):
    """A client's first message."""

    gs2_header: str
    authzid: str
    user: str
    nonce: str
    bare: str


class ClientFinal(msgspec.Struct, frozen=True):
    """A client's proof."""

    channel: bytes
    nonce: str
    proof: bytes
    without_proof: str


class ServerFirst(msgspec.Struct, frozen=True):
    """A server's challenge."""

    nonce: str
    salt: bytes
    iterations: int


def decode_text(data: bytes) -> str:
    """The message as text."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise MalformedMessage(f"a SCRAM message has at most {MAX_MESSAGE_BYTES} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise MalformedMessage("a SCRAM message is UTF-8") from None
    if "\0" in text:
        raise MalformedMessage("a SCRAM message has no NUL")
    return text


def encode_name(name: str) -> str:
    """A name as SCRAM writes it: commas and equals signs are escaped."""
    return name.replace("=", "=3D").replace(",", "=2C")


def _decode_name(text: str) -> str:
    name = text.replace("=2C", ",").replace("=3D", "=")
    if not name or encode_name(name) != text:
        raise MalformedMessage(
            "a name in SCRAM is not empty and writes a comma as =2C, an equals sign as =3D"
        )
    if len(name) > MAX_USER_CHARACTERS:
        raise MalformedMessage(f"a user's name has at most {MAX_USER_CHARACTERS} characters")
    return name


def _value(field: str, letter: str) -> str:
    if not field.startswith(f"{letter}=") or len(field) == 2:
        raise MalformedMessage(f"expected {letter}= in a SCRAM message")
    return field[2:]


def _nonce(field: str, longest: int = MAX_NONCE_CHARACTERS) -> str:
    nonce = _value(field, "r")
    if len(nonce) > longest or not _NONCE_CHARACTERS.issuperset(nonce):
        raise MalformedMessage(f"a nonce has at most {longest} printable ASCII characters")
    return nonce


def decode_base64(field: str, letter: str) -> bytes:
    """The bytes of a field."""
    try:
        return base64.b64decode(_value(field, letter), validate=True)
    except (binascii.Error, ValueError):
        raise MalformedMessage(f"{letter}= is not base64") from None


def encode_base64(data: bytes) -> str:
    """The text of a field."""
    return base64.b64encode(data).decode()


def _check_extensions(fields: list[str]) -> None:
    for field in fields:
        name, equals, value = field.partition("=")
        if not equals or name == "m":
            raise MalformedMessage("the client asks for a SCRAM extension that is not offered")
        if name == TOKEN_AUTH and value == "true":
            raise MalformedMessage("delegation tokens are not offered")


def parse_client_first(data: bytes) -> ClientFirst:
    """MalformedMessage says what is wrong."""
    flag, *rest = decode_text(data).split(",", 2)
    if len(rest) != 2:
        raise MalformedMessage("a SCRAM login begins with n,,")
    if flag not in ("n", "y"):
        raise MalformedMessage("channel binding is not offered")
    authzid = _decode_name(_value(rest[0], "a")) if rest[0] else ""
    user, *fields = rest[1].split(",")
    if user.startswith("m="):
        raise MalformedMessage("the client asks for a SCRAM extension that is not offered")
    name = _decode_name(_value(user, "n"))
    if not fields:
        raise MalformedMessage("expected r= in a SCRAM message")
    _check_extensions(fields[1:])
    return ClientFirst(f"{flag},{rest[0]},", authzid, name, _nonce(fields[0]), rest[1])


def parse_client_final(data: bytes) -> ClientFinal:
    """MalformedMessage says what is wrong."""
    text = decode_text(data)
    without_proof, _, proof = text.rpartition(",")
    channel, *fields = without_proof.split(",")
    if not fields:
        raise MalformedMessage("expected r= in a SCRAM message")
    _check_extensions(fields[1:])
    return ClientFinal(
        decode_base64(channel, "c"),
        _nonce(fields[0], 2 * MAX_NONCE_CHARACTERS),
        decode_base64(proof, "p"),
        without_proof,
    )


def parse_server_first(data: bytes) -> ServerFirst:
    """MalformedMessage says what is wrong."""
    fields = decode_text(data).split(",")
    if fields[0].startswith("m=") or len(fields) < 3:
        raise MalformedMessage("the server's challenge is not SCRAM's")
    iterations = _value(fields[2], "i")
    if not (iterations.isascii() and iterations.isdigit() and len(iterations) <= 9):
        raise MalformedMessage("i= is not a number")
    return ServerFirst(
        _nonce(fields[0], 2 * MAX_NONCE_CHARACTERS), decode_base64(fields[1], "s"), int(iterations)
    )
