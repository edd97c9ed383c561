"""Contexts made of PEM files, and made again when the files change.

The node looks at the files every second: their time, size and inode, so that a link that is turned to another folder
(as Kubernetes does) counts too. Files that changed are read when they have been the same in two looks, because programs
that replace certificates write one file after the other. If they cannot be used, the context before stays, and one line
in the log says why.

A connection keeps the context that it began with. A new context has nothing of the one before: authorities that were
removed are not believed any more. Sessions are never resumed, because that would skip the check of a certificate.

A certificate of the node that expires soon, or has expired, is used nevertheless: clients decide what they accept. One
line in the log tells of it, because otherwise only the clients' errors would.
"""

import asyncio
import logging
import math
import os
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.config import InterNodeTls, TlsSettings
from penstock.errors import ConfigError

log = logging.getLogger("penstock.tls")

LOOK_SECONDS = 1.0
WARN_SECONDS = 7 * 24 * 3600
"""How long before a certificate expires the log tells of it. Programs that replace certificates do so weeks before."""

Stamp = tuple[tuple[int, int, int] | None, ...]
"""Of each file: time of its last change, size, inode. None: it cannot be looked at."""

_VERIFY = {"none": ssl.CERT_NONE, "wanted": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class TlsFiles:
    """The current context of some files. `watch` keeps it current until `stop`."""

    def __init__(self, field: str, paths: tuple[str, ...], make: Callable[[], ssl.SSLContext]) -> None:
        """The first of the paths has the node's certificate. ConfigError, which names `field`, if the files cannot be
        used."""
        self._field = field
        self._paths = paths
        self._make = make
        self._stamp = self._seen = _stamp(paths)
        self._timer: asyncio.TimerHandle | None = None
        try:
            self.current = make()
        except (OSError, ValueError) as problem:  # ssl.SSLError is an OSError
            raise ConfigError(
                field, ", ".join(paths), f"PEM files that belong together ({_told(problem)})"
            ) from None
        self._read_end()

    def watch(self) -> None:
        loop = asyncio.get_running_loop()

        def look() -> None:
            self.look()
            self._timer = loop.call_later(LOOK_SECONDS, look)

        self._timer = loop.call_later(LOOK_SECONDS, look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self) -> None:
        """Reads the files again if they have changed, and have stayed the same since the last look."""
        self._tell_end()
        seen, self._seen = self._seen, _stamp(self._paths)
        if self._seen == self._stamp or self._seen != seen:
            return
        self._stamp = self._seen
        try:
            self.current = self._make()
        except (OSError, ValueError) as problem:
            log.error(
                "%s: the new files cannot be used, the ones before stay: %s", self._field, _told(problem)
            )
        else:
            log.info("%s: new connections use the new files", self._field)
            self._read_end()

    def _read_end(self) -> None:
        self._ends_s = _end_of(self._paths[0])
        self._told = ""
        """The last warning about the end, so that the next look does not repeat it."""
        self._tell_end()

    def _tell_end(self) -> None:
        left_s = self._ends_s - time.time()
        if left_s > WARN_SECONDS:
            return
        day = time.strftime("%Y-%m-%d", time.gmtime(self._ends_s))
        told = f"has expired on {day}: clients refuse it" if left_s <= 0 else f"expires on {day}"
        if told != self._told:
            self._told = told
            log.warning("%s: the certificate in %s %s", self._field, self._paths[0], told)


def client_port_files(field: str, settings: TlsSettings, alpn: tuple[str, ...] = ()) -> TlsFiles:
    """For a port that clients connect to."""

    def make() -> ssl.SSLContext:
        context = _context(ssl.PROTOCOL_TLS_SERVER, settings.cert, settings.key)
        if settings.ca is not None:
            context.load_verify_locations(settings.ca)
        context.verify_mode = _VERIFY[settings.client_certificates]
        if alpn:
            context.set_alpn_protocols(list(alpn))
        return context

    return TlsFiles(field, tuple(_given(settings.cert, settings.key, settings.ca)), make)


def inter_node_files(settings: InterNodeTls) -> tuple[TlsFiles, TlsFiles]:
    """For nodes that connect to this one, and for those that this one connects to. Both sides show a certificate."""

    def accepts() -> ssl.SSLContext:
        context = _context(ssl.PROTOCOL_TLS_SERVER, settings.cert, settings.key)
        return _verifying(context, settings.ca)

    def dials() -> ssl.SSLContext:
        context = _context(ssl.PROTOCOL_TLS_CLIENT, settings.cert, settings.key)
        context.check_hostname = settings.check_hostname
        return _verifying(context, settings.ca)

    paths = (settings.cert, settings.key, settings.ca)
    return TlsFiles("inter_node_tls", paths, accepts), TlsFiles("inter_node_tls (dialling)", paths, dials)


def _verifying(context: ssl.SSLContext, ca: str) -> ssl.SSLContext:
    context.load_verify_locations(ca)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _context(protocol: int, cert: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    context.load_cert_chain(cert, key, password=_no_password)
    return context


def _no_password() -> str:
    """Without this, OpenSSL would ask for the password on the terminal, and the node would wait."""
    raise ValueError(
        "the key is encrypted: give a key without a password, in a file that only this user can read"
    )


def _end_of(cert: str) -> float:
    """When the first certificate of a file expires, in seconds since 1970; never, if that cannot be read."""
    from cryptography.x509 import load_pem_x509_certificate  # only nodes with TLS need it

    try:
        return load_pem_x509_certificate(Path(cert).read_bytes()).not_valid_after_utc.timestamp()
    except (OSError, ValueError):
        return math.inf


def _given(*paths: str | None) -> Iterator[str]:
    return (path for path in paths if path is not None)


def _stamp(paths: tuple[str, ...]) -> Stamp:
    return tuple(_stamp_of(path) for path in paths)


def _stamp_of(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _told(problem: Exception) -> str:
    return getattr(problem, "reason", None) or getattr(problem, "strerror", None) or str(problem)
