"""Clients that do not finish what they begin, guess, forge, or are not who they say they are.

The attacker comes from another address than the honest clients where the node tells addresses apart. SASL messages that
are split at every position are in tests/kafka/server/test_logins.py.
"""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey, decode_response
from penstock.node.peers.handshake import KEYED, MAGIC, NEWEST_VERSION, NONCE_SIZE
from penstock.node.tls.dev_certificates import LOCAL_HOSTS, DevCertificates
from tools.hostile.attack import Attack, Stopwatch, decoded, http_request, read_response
from tools.hostile.identity_provider import Mode
from tools.hostile.setups import AUTHENTICATE_VERSION, plain_login, sasl_login

ATTACKER = "127.0.0.2"
SLOW_HANDSHAKES = 4_000
UNFINISHED_LOGINS = 4_000
WRONG_PASSWORDS = 10_000
AT_ONCE = 1_000
FORGED_ROUNDS = 50
UNVERIFIED_TOKENS = 1_500
STRANGERS = 1_500
REPLAYS = 500
REPLAY_ROUNDS = 100
ROUND_SECONDS = 0.1
HELD_SECONDS = 5.0
LOGIN_SECONDS = 0.1
PROVIDER_SECONDS = 60.0
"""Until a node asks the provider again, and for a machine that is busy."""
STRANGER_SECONDS = 5.0
OK, UNAUTHORIZED = 200, 401


class HonestLogins:
    """Logs in with the right password, again and again, beside the attack."""

    def __init__(self, attack: Attack) -> None:
        self._attack = attack
        self._over = threading.Event()
        self.number = 0
        self.worst_seconds = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "HonestLogins":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        access = self._attack.brokers.access
        while not self._over.wait(LOGIN_SECONDS):
            watch = Stopwatch()
            try:
                one = self._attack.connect(self._attack.node.node.kafka_port)
                one.sendall(b"".join(plain_login(access.user, access.password)))
                problem = _refusal(one)
                self._attack.close(one)
            except OSError as failure:
                problem = repr(failure)
            self.number += 1
            self.worst_seconds = max(self.worst_seconds, watch.seconds)
            if problem:
                self._attack.fail(f"a user with the right password was refused: {problem}")
                return

    def __str__(self) -> str:
        return f"{self.number} logins of another user took {self.worst_seconds * 1000:,.0f} ms at most"


def _refusal(one: socket.socket) -> str:
    """Why the login was refused that was sent on this connection; empty if it was not."""
    _frame(one)  # the answer to SaslHandshake
    _, answer = decode_response(ApiKey.SASL_AUTHENTICATE, AUTHENTICATE_VERSION, memoryview(_frame(one)))
    code = getattr(answer, "error_code", 0)
    return "" if code == ErrorCode.NONE else str(getattr(answer, "error_message", "") or code)


def _frame(one: socket.socket) -> bytes:
    return _exactly(one, int.from_bytes(_exactly(one, 4), "big"))


def _exactly(one: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = one.recv(count - len(data))
        if not part:
            raise ConnectionError("closed by the node")
        data += part
    return data


# --- clients that do not finish


def stop_in_handshakes(attack: Attack) -> None:
    """TLS: nothing at all, half of the first message, or all of it and nothing more."""
    hello = _client_hello()
    parts = (b"", hello[: len(hello) // 2], hello)
    port = attack.node.node.kafka_port
    context = attack.brokers.access.context
    assert context is not None
    worst = 0.0
    for number in range(SLOW_HANDSHAKES):
        with suppress(ConnectionError):  # the node closes the oldest
            attack.connect(port, source=ATTACKER).sendall(parts[number % len(parts)])
        if number % (SLOW_HANDSHAKES // 20) == 0:
            watch = Stopwatch()
            with context.wrap_socket(attack.connect(port), server_hostname="localhost"):
                worst = max(worst, watch.seconds)
    time.sleep(HELD_SECONDS)
    attack.note = f"20 handshakes of another client took {worst * 1000:,.0f} ms at most"


def _client_hello() -> bytes:
    """The first message of TLS."""
    sent = ssl.MemoryBIO()
    made = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        made.do_handshake()
    return sent.read()


def stop_in_logins(attack: Attack) -> None:
    """No byte, the handshake of SASL alone, half of a password's message, or the first message of SCRAM."""
    handshake, password = plain_login("admin", "wrong")
    parts = (
        b"",
        handshake,
        handshake + password[: len(password) // 2],
        b"".join(sasl_login("SCRAM-SHA-256", b"n,,n=admin,r=nonce")),
    )
    with HonestLogins(attack) as honest:
        for number in range(UNFINISHED_LOGINS):
            one = attack.connect(attack.node.node.kafka_port, source=ATTACKER)
            one.sendall(parts[number % len(parts)])
        time.sleep(HELD_SECONDS)
    attack.note = str(honest)


# --- clients that guess and forge


def guess_passwords(attack: Attack) -> None:
    watch, unchecked = Stopwatch(), 0
    with HonestLogins(attack) as honest:
        for first in range(0, WRONG_PASSWORDS, AT_ONCE):
            unchecked += _guess(attack, range(first, first + AT_ONCE))
    took = f"{WRONG_PASSWORDS:,} guesses in {watch.seconds:.0f} s"
    attack.note = f"{took}, {unchecked:,} of them refused unchecked; {honest}"


def _guess(attack: Attack, numbers: Sequence[int]) -> int:
    """One connection for each. How many were refused before their password was checked."""
    made = []
    for number in numbers:
        made.append(attack.connect(attack.node.node.kafka_port, source=ATTACKER))
        made[-1].sendall(b"".join(plain_login("admin", f"guess-{number}")))
    unchecked = 0
    for one in made:
        problem = _refusal(one)
        if not problem:
            attack.fail("a wrong password was accepted")
        unchecked += "too many" in problem
        attack.close(one)
    return unchecked


def forge_tokens(attack: Attack) -> None:
    """The provider does not answer, then it answers byte by byte, then as it should, and in the end not at all."""
    provider = attack.brokers.material.provider
    assert provider is not None
    good = provider.token("admin")
    forged = provider.forged("admin") * FORGED_ROUNDS
    with HonestLogins(attack) as honest:
        provider.mode = Mode.DOWN
        _expect_refusals(attack, [good], "no key is known")
        provider.mode = Mode.SLOW
        _wait_until(attack, good, lambda status: provider.asked > 1)
        _expect_refusals(attack, [good] * UNVERIFIED_TOKENS, "no key is known")
        provider.mode = Mode.UP
        _wait_until(attack, good, lambda status: status == OK)
        _expect_refusals(attack, forged, "they are forged")
        provider.mode = Mode.DOWN
        if _show_tokens(attack, [good]) != [OK]:
            attack.fail("a good token was refused while the provider does not answer")
    attack.note = f"{len(forged)} forged tokens were refused; {honest}"


def _show_tokens(attack: Attack, tokens: Sequence[str]) -> list[int]:
    """The statuses of requests with these tokens, all at once."""
    made = []
    for token in tokens:
        made.append(attack.connect(attack.node.http_port, source=ATTACKER))
        made[-1].sendall(http_request("GET", "/v1", headers=[("Authorization", f"Bearer {token}")]))
    statuses = []
    for one in made:
        statuses.append(read_response(one).status)
        attack.close(one)
    return statuses


def _expect_refusals(attack: Attack, tokens: Sequence[str], why: str) -> None:
    accepted = sum(status != UNAUTHORIZED for status in _show_tokens(attack, tokens))
    if accepted:
        attack.fail(f"{accepted} of {len(tokens)} tokens were accepted although {why}")


def _wait_until(attack: Attack, token: str, claim: Callable[[int], bool]) -> None:
    """Shows the token until the node has asked the provider again: the claim holds for the status of its answer."""
    watch = Stopwatch()
    while not claim(_show_tokens(attack, [token])[0]):
        if watch.seconds > PROVIDER_SECONDS:
            attack.fail("the node did not ask the provider again")
            return
        time.sleep(ROUND_SECONDS)


# --- between nodes


def knock_as_strangers(attack: Attack) -> None:
    """TLS without a certificate, TLS with one of another authority, and no TLS."""
    certificates = attack.brokers.material.certificates
    assert certificates is not None
    nameless = _believing(certificates.ca)
    foreign = _believing(certificates.ca)
    other = DevCertificates(certificates.folder / "others")
    foreign.load_cert_chain(*other.issue("node", common_name="node", hosts=LOCAL_HOSTS))
    for number in range(STRANGERS):
        node = attack.brokers.nodes[number % len(attack.brokers.nodes)]
        one = attack.connect(node.node.cluster_port)
        one.settimeout(STRANGER_SECONDS)
        if _is_answered(one, (nameless, foreign, None)[number // 3 % 3]):
            attack.fail(f"{node.name} answered a stranger")
        attack.close(one)
    attack.note = f"{STRANGERS:,} strangers, none was answered"


def _believing(authority: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority)


def _is_answered(one: socket.socket, context: ssl.SSLContext | None) -> bool:
    """Whether a node answers the first bytes of its own protocol. With TLS 1.3, a client has done its part of the
    handshake before it learns that its certificate was refused."""
    try:
        used = one if context is None else context.wrap_socket(one, server_hostname="localhost")
        with used:
            used.sendall(MAGIC + bytes([NEWEST_VERSION, NEWEST_VERSION, KEYED, 0]) + bytes(NONCE_SIZE))
            return used.recv(1) != b""
    except OSError:  # also the errors of TLS
        return False


def replay_gossip(attack: Attack) -> None:
    relay = attack.brokers.relay
    assert relay is not None
    relay.reorders = True
    replayed = 0
    for _ in range(REPLAY_ROUNDS):
        replayed += relay.replay(REPLAYS)
        time.sleep(ROUND_SECONDS)
    relay.reorders = False
    nodes = decoded(attack.http("GET", "/v1/cluster/nodes"))["nodes"]
    missing = [node["node_id"] for node in nodes if node["state"] != "alive"]
    if missing or len(nodes) != len(attack.brokers.nodes):
        attack.fail(f"nodes {missing} of {len(nodes)} are taken for dead")
    attack.note = f"{replayed:,} datagrams sent again, {relay.reordered:,} delayed; all nodes are alive"
