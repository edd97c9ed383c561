"""Why a broker does not let a command in, in the words of the command line.

librdkafka tries again and again until its timeout, and then says that no broker answers. So a command that logs in or
encrypts asks the client for batches first, which tries once and knows why it failed. A command that does neither asks
it only after librdkafka has given up. It says nothing where it cannot be sure: a node that is starting closes
connections, too.
"""

from collections.abc import Mapping

from penstock.cli.problem import Problem
from penstock.client.errors import LoginFailed, LoginProblem, TlsFailed, TlsProblem
from penstock.client.login_diagnosis import find_reason
from penstock.client.security_arguments import client_security
from penstock.errors import ConfigError

_LOGIN: dict[LoginProblem, tuple[str, str]] = {
    "wanted": (
        "{where} requires login",
        "--user NAME logs in, with --password-file, PENSTOCK_PASSWORD or a question for the password",
    ),
    "no mechanism": (
        "{where} has no mechanism {mechanism}",
        "it has {detail}: -X sasl.mechanism=NAME chooses one",
    ),
    "not wanted": ("{where} asks for no login", "leave --user out"),
    "refused": (
        "the login of {user} was refused: {detail}",
        "check the name and the password: --password-file names the file; an administrator sets another password "
        "with `penstock users passwd`",
    ),
}
_TLS: dict[TlsProblem, tuple[str, str]] = {
    "untrusted": (
        "the certificate of {where} is not trusted: {detail}",
        "--tls-ca names the file with the authority that signed it; it must name the host that you use, too",
    ),
    "not spoken": (
        "{where} speaks no TLS",
        "leave the --tls options out, or name the port that has it with --bootstrap",
    ),
    "wanted": (
        "{where} wants TLS",
        "--tls-ca FILE names the authority that signed its certificate; --tls trusts the system's authorities",
    ),
    "own certificate": (
        "{where} does not accept your certificate, or wants one: {detail}",
        "--tls-cert and --tls-key name a certificate that the broker's authority has signed",
    ),
    "files": ("the files for TLS cannot be used: {detail}", "--tls-ca and --tls-cert are PEM"),
    "other": ("TLS with {where} failed: {detail}", "does the port speak TLS? --bootstrap names another one"),
}
"""For each problem, the message and the advice."""


def find_problem(servers: str, kafka: Mapping[str, str]) -> Problem | None:
    """The reason why a client with these settings of librdkafka is refused; None if there is none, or it is unclear."""
    try:
        security = client_security({}, kafka).settings
    except ConfigError:  # librdkafka says what is wrong with them, or knows more than we do
        return None
    reason = find_reason(servers, security)
    if reason is None:
        return None
    facts = {"where": servers, "user": security.user, "mechanism": security.mechanism}
    return explained(reason, facts)


def explained(reason: LoginFailed | TlsFailed, facts: Mapping[str, str]) -> Problem:
    said, advice = _LOGIN[reason.problem] if isinstance(reason, LoginFailed) else _TLS[reason.problem]
    known = {**facts, "detail": reason.detail}
    return Problem(said.format_map(known), advice.format_map(known))
