"""TLS of clients: the context that follows from the settings, and what to do about each failure.

A context is made for each connection: files that were replaced count from the next connection on.
"""

import os
import socket
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.client.errors import TlsFailed
from penstock.client.security_settings import SecuritySettings

CA_NAMES: Final = "tls_ca (ssl.ca.location, in Java's words ssl.truststore.location)"
CERT_NAMES: Final = "tls_cert and tls_key (ssl.certificate.location, ssl.key.location)"

_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG")
"""OpenSSL's reasons where the first bytes of the other side are not TLS."""
_CERTIFICATE_WANTED: Final = ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE", "BAD_CERTIFICATE", "UNKNOWN_CA")
"""Alerts of a broker that does not accept a client without its certificate, or with this one."""


def client_context(security: SecuritySettings) -> ssl.SSLContext:
    """Raises TlsFailed if a file cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = security.check_hostname and security.check_certificate
    if not security.check_certificate:
        context.verify_mode = ssl.CERT_NONE
    _trust(context, security)
    if security.cert_file or security.cert_pem:
        _show(context, security)
    return context


def _trust(context: ssl.SSLContext, security: SecuritySettings) -> None:
    if not (security.ca_file or security.ca_pem):
        context.load_default_certs()
        return
    with _explaining(f"the authorities ({CA_NAMES})", security.ca_file):
        is_folder = bool(security.ca_file) and os.path.isdir(security.ca_file)
        context.load_verify_locations(
            cafile=None if is_folder else security.ca_file or None,
            capath=security.ca_file if is_folder else None,
            cadata=security.ca_pem or None,
        )


def _show(context: ssl.SSLContext, security: SecuritySettings) -> None:
    """Python takes a certificate and its key from files only: texts go into files that are removed at once."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        cert = security.cert_file or _written(folder, "cert.pem", security.cert_pem)
        key = security.key_file or (
            _written(folder, "key.pem", security.key_pem) if security.key_pem else None
        )
        with _explaining(f"the certificate or its key ({CERT_NAMES})", security.cert_file):
            # Without the function OpenSSL would ask for the password on the terminal.
            context.load_cert_chain(cert, key, password=lambda: security.key_password)


def _written(folder: str, name: str, text: str) -> str:
    path = os.path.join(folder, name)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    return path


@contextmanager
def _explaining(what: str, file: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        if isinstance(problem, ssl.SSLError):
            reason = f"{problem.reason or 'not PEM'}; expected PEM, and the password of a key that has one"
        where = f" in {file!r}" if file else ""
        raise TlsFailed(
            f"{what}{where} cannot be used: {reason}. Files are read where the client runs, here on "
            f"{socket.gethostname()}; those of a Spark job on each executor as well",
            problem="files",
            detail=f"{file or what}: {reason}",
        ) from None


def tls_failure(problem: BaseException, address: str) -> TlsFailed | None:
    """Why no encrypted connection to the address can be made; None if the problem is another one, or may pass."""
    if not isinstance(problem, ssl.SSLError):
        return None
    if isinstance(problem, ssl.SSLCertVerificationError):
        return TlsFailed(
            f"{address}: {_distrust(problem)}", problem="untrusted", detail=problem.verify_message
        )
    reason = problem.reason or ""
    if reason in _NO_TLS:
        return no_tls(address)
    if any(word in reason for word in _CERTIFICATE_WANTED):
        return TlsFailed(
            f"{address}: the broker does not accept this client's certificate, or its lack of one ({reason}): give one "
            f"that the broker's authority has signed: {CERT_NAMES}",
            problem="own certificate",
            detail=reason,
        )
    if isinstance(problem, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return None
    return TlsFailed(f"{address}: TLS failed: {reason}", detail=reason) if reason else None


def no_tls(address: str) -> TlsFailed:
    return TlsFailed(
        f"{address}: this port does not speak TLS: use the port that does, or leave out tls, tls_ca and SSL",
        problem="not spoken",
    )


def _distrust(problem: ssl.SSLCertVerificationError) -> str:
    why = problem.verify_message
    if "mismatch" in why or "match" in why:
        return f"the broker's certificate is for another host ({why}): connect by a name that it has"
    if "expired" in why or "not yet valid" in why:
        return f"the broker's certificate is not valid now ({why}): replace it, or check the clock of this machine"
    return f"the broker's certificate is not trusted ({why}): name the authority that signed it: {CA_NAMES}"


def speaks_tls(host: str, port: int, timeout_s: float) -> bool:
    """Whether the port answers to a TLS handshake. Sends nothing else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), timeout_s) as plain:
            plain.settimeout(timeout_s)
            with context.wrap_socket(plain, server_hostname=host):
                return True
    except ssl.SSLError as problem:
        return any(word in (problem.reason or "") for word in _CERTIFICATE_WANTED)
    except OSError:
        return False
