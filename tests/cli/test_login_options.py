"""How commands log in: options, variables and profiles, over Kafka and HTTP; and what they say when it fails."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest
from click.testing import Result

from penstock import Broker
from penstock.cli import login, profiles
from penstock.cli.connection import Connection
from penstock.cli.problem import Problem

from .conftest import Cli, succeeded
from .secured import PASSWORDS, secured_broker

BOTH = (("topics", "list"), ("queues", "list"))
"""One command over Kafka, and one over HTTP."""


@pytest.fixture(scope="module")
def secured() -> Iterator[Broker]:
    with secured_broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def encrypted() -> Iterator[Broker]:
    with Broker(users=PASSWORDS, tls=True) as broker:
        yield broker


@pytest.fixture
def password_file(tmp_path: Path) -> str:
    file = tmp_path / "password"
    file.write_text(PASSWORDS["admin"] + "\n")
    return str(file)


@pytest.fixture
def at(plain_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command with a broker."""
    for variable in ("PENSTOCK_USER", "PENSTOCK_PASSWORD", "PENSTOCK_CLIENT_TLS_CA"):
        monkeypatch.delenv(variable, raising=False)

    def run(broker: Broker, *words: str, stdin: str | None = None) -> Result:
        return plain_cli(*words, "--bootstrap", broker.bootstrap_servers, stdin=stdin)

    return run


@pytest.mark.parametrize("command", BOTH)
def test_options_log_in_over_kafka_and_http(
    command: tuple[str, ...], at: Callable[..., Result], secured: Broker, password_file: str
) -> None:
    succeeded(at(secured, *command, "--user", "admin", "--password-file", password_file))
    succeeded(at(secured, *command, "--user", "admin", "--password-file", "-", stdin=PASSWORDS["admin"]))


@pytest.mark.parametrize("command", BOTH)
def test_variables_log_in(
    command: tuple[str, ...], at: Callable[..., Result], secured: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_USER", "admin")
    monkeypatch.setenv("PENSTOCK_PASSWORD", PASSWORDS["admin"])
    succeeded(at(secured, *command))


@pytest.mark.parametrize("command", BOTH)
def test_settings_of_librdkafka_log_in_over_http_too(
    command: tuple[str, ...], at: Callable[..., Result], secured: Broker
) -> None:
    settings = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "admin",
        "sasl.password": PASSWORDS["admin"],
    }
    flags = [flag for name, value in settings.items() for flag in ("-X", f"{name}={value}")]
    succeeded(at(secured, *command, *flags))


@pytest.mark.parametrize("command", BOTH)
def test_a_user_without_permissions_finds_the_http_port(
    command: tuple[str, ...], at: Callable[..., Result], secured: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_PASSWORD", PASSWORDS["alice"])
    succeeded(at(secured, *command, "--user", "alice"))


# --- profiles


def write_profile(text: str) -> None:
    profiles.path().parent.mkdir(parents=True, exist_ok=True)
    profiles.path().write_text(text)


@pytest.mark.parametrize("command", BOTH)
def test_a_profile_logs_in(
    command: tuple[str, ...], plain_cli: Cli, encrypted: Broker, password_file: str
) -> None:
    write_profile(
        f"""
        [profiles.safe]
        bootstrap = "{encrypted.bootstrap_servers}"
        user = "admin"
        password_file = "{password_file}"
        tls_ca = "{encrypted.tls_ca_file}"
        [profiles.safe.kafka]
        "sasl.mechanism" = "SCRAM-SHA-512"
        """
    )
    succeeded(plain_cli(*command, "--profile", "safe"))


@pytest.mark.parametrize("command", BOTH)
def test_a_variable_names_the_authority_that_commands_trust_and_the_one_of_nodes_is_not_read(
    command: tuple[str, ...],
    at: Callable[..., Result],
    encrypted: Broker,
    password_file: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_TLS_CA", "/of/the/clients.pem")
    monkeypatch.setenv("PENSTOCK_CLIENT_TLS_CA", str(encrypted.tls_ca_file))
    succeeded(at(encrypted, *command, "--user", "admin", "--password-file", password_file))


def test_variables_of_another_cluster_do_not_meet_a_profile(
    plain_cli: Cli, secured: Broker, password_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_USER", "somebody")
    monkeypatch.setenv("PENSTOCK_CLIENT_TLS_CA", "/of/another/cluster.pem")
    write_profile(
        f"""
        [profiles.here]
        bootstrap = "{secured.bootstrap_servers}"
        user = "admin"
        password_file = "{password_file}"
        """
    )
    succeeded(plain_cli("topics", "list", "--profile", "here"))


def test_files_of_a_profile_may_be_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    profile = profiles.Profile(password_file="~/secret", tls_ca="/etc/ca.pem").with_paths()
    assert (profile.password_file, profile.tls_ca) == ("/home/alice/secret", "/etc/ca.pem")


# --- TLS


@pytest.mark.parametrize("command", BOTH)
def test_an_authority_encrypts_both_protocols(
    command: tuple[str, ...], at: Callable[..., Result], encrypted: Broker, password_file: str
) -> None:
    flags = ("--user", "admin", "--password-file", password_file, "--tls-ca", str(encrypted.tls_ca_file))
    succeeded(at(encrypted, *command, *flags))


def test_an_http_address_has_tls_like_kafka(
    at: Callable[..., Result], encrypted: Broker, password_file: str
) -> None:
    address = encrypted.http_url.removeprefix("https://")
    flags = ("--user", "admin", "--password-file", password_file, "--tls-ca", str(encrypted.tls_ca_file))
    succeeded(at(encrypted, "queues", "list", "--http", address, *flags))


def test_a_password_does_not_leave_tls_for_another_machine() -> None:
    kafka = {"security.protocol": "sasl_ssl", "sasl.username": "a", "sasl.password": "secret"}
    assert "Authorization" in login.http_headers(kafka, "https://broker.example.org:8443")
    assert "Authorization" in login.http_headers(kafka, "http://127.0.0.1:8080")
    with pytest.raises(Problem, match="has no TLS") as problem:
        login.http_headers(kafka, "http://broker.example.org:8080")
    assert "secret" not in problem.value.message


def test_a_redirect_gets_no_password(at: Callable[..., Result], password_file: str, secured: Broker) -> None:
    """A node never redirects; something else at its address might."""
    with socket.create_server(("127.0.0.1", 0)) as thief, socket.create_server(("127.0.0.1", 0)) as honest:

        def redirect() -> None:
            connection, _ = honest.accept()
            with connection:
                connection.recv(65536)
                target = f"http://127.0.0.1:{thief.getsockname()[1]}/"
                connection.sendall(
                    f"HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode()
                )

        Thread(target=redirect, daemon=True).start()
        address = f"127.0.0.1:{honest.getsockname()[1]}"
        flags = ("--user", "admin", "--password-file", password_file)
        result = at(secured, "queues", "list", "--http", address, *flags)
        assert result.exit_code == 1
        thief.setblocking(False)
        with pytest.raises(BlockingIOError):
            thief.accept()


# --- what went wrong


@pytest.mark.parametrize("command", BOTH)
@pytest.mark.parametrize(
    ("flags", "said", "advice"),
    [
        ((), "requires login", "--user NAME"),
        (("--user", "admin", "-X", "sasl.password=wrong"), "the login of admin was refused", "users passwd"),
        (
            ("--user", "nobody", "-X", "sasl.password=wrong"),
            "the login of nobody was refused",
            "users passwd",
        ),
        (("--user", "admin", "--tls"), "speaks no TLS", "leave the --tls options out"),
        (("--user", "admin", "-X", "sasl.mechanism=GSSAPI"), "no mechanism GSSAPI", "SCRAM-SHA-256"),
    ],
)
def test_a_broker_that_requires_login_says_what_is_missing(
    at: Callable[..., Result],
    secured: Broker,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    flags: tuple[str, ...],
    said: str,
    advice: str,
) -> None:
    monkeypatch.setenv("PENSTOCK_PASSWORD", PASSWORDS["admin"])
    refused = at(secured, *command, *flags)
    assert refused.exit_code == 1
    assert said in refused.stderr
    assert advice in refused.stderr


@pytest.mark.parametrize(
    ("flags", "said", "advice"),
    [
        ((), "wants TLS", "--tls-ca FILE"),
        (("--tls",), "is not trusted", "--tls-ca names the file"),
    ],
)
def test_a_broker_with_tls_says_what_is_missing(
    at: Callable[..., Result], encrypted: Broker, flags: tuple[str, ...], said: str, advice: str
) -> None:
    refused = at(encrypted, "topics", "list", *flags)
    assert refused.exit_code == 1
    assert said in refused.stderr
    assert advice in refused.stderr


def test_a_broker_without_login_says_so(
    at: Callable[..., Result], broker: Broker, password_file: str
) -> None:
    refused = at(broker, "topics", "list", "--user", "admin", "--password-file", password_file)
    assert refused.exit_code == 1
    assert "asks for no login" in refused.stderr


def test_a_missing_permission_is_named(
    at: Callable[..., Result], secured: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_USER", "alice")
    monkeypatch.setenv("PENSTOCK_PASSWORD", PASSWORDS["alice"])
    sent = at(secured, "produce", "orders", stdin="x\n")
    assert (sent.exit_code, "WRITE on the topic orders" in sent.stderr) == (1, True)
    made = at(secured, "topics", "create", "orders")
    assert (made.exit_code, "User:alice has no CREATE permission" in made.stderr) == (1, True)
    assert "penstock acls check" in made.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--user", "admin"), "the password of admin is missing"),
        (("--password-file", "-"), "--user names the user"),
        (("--user", "admin", "--password-file", "/no/such/file"), "does not exist"),
        (("--tls-ca", "/no/such/file"), "does not exist"),
    ],
)
def test_half_a_login_is_a_wrong_command_line(
    at: Callable[..., Result], secured: Broker, flags: tuple[str, ...], said: str
) -> None:
    wrong = at(secured, "topics", "list", *flags, stdin="")
    assert wrong.exit_code == 2
    assert said in wrong.stderr


def test_nothing_that_is_printed_shows_a_password() -> None:
    settings = {"sasl.password": "secret"}
    assert "secret" not in repr(Connection(bootstrap="b:1", settings=settings))
    assert "secret" not in repr(profiles.Profile(kafka=settings))


def test_pipelines_get_kafkas_names_for_the_same_login() -> None:
    kafka = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "alice",
        "sasl.password": 'a "quoted" word',
        "ssl.ca.location": "/etc/ca.pem",
    }
    assert login.java_settings(kafka) == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="alice" password="a \\"quoted\\" word";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/etc/ca.pem",
    }
    assert login.java_settings({}) == {}
