"""Why no broker answers, if the reason is the login or TLS.

librdkafka tries again and again, and its requests then only time out. It reports a login that a broker refuses; for all
other reasons the client for batches is asked, which tries once and knows why it failed.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from penstock.client.errors import ClientError, LoginFailed, TlsFailed, Unreachable
from penstock.client.security_arguments import ClientSecurity
from penstock.client.security_settings import MECHANISMS, SecuritySettings
from penstock.client.wire import ClientSettings, Cluster
from penstock.client.wire.connection import mechanism_missing
from penstock.client.wire.login import login_refused
from penstock.client.wire.settings import parse_servers
from penstock.errors import PenstockError

TRY_MS: Final = 7_000
"""For all bootstrap servers together. Brokers answer to logins that fail again and again after up to five seconds."""
LEAST_MS: Final = 1_000
HEARD_SECONDS: Final = 120.0
"""How long a report of librdkafka counts: it does not repeat the same one more often than once a minute."""
ERROR_CALLBACK: Final = "error_cb"
REFUSED_LOGIN: Final = "authentication error"
"""In the text of a report about credentials; others are about mechanisms."""


class LoginDiagnosis:
    """Of one client. Usable from all threads."""

    def __init__(self, servers: str, security: ClientSecurity) -> None:
        self._servers = servers
        self._security = security
        self._refused_until = 0.0
        self._admin: AdminClient | None = None

    def listening(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of librdkafka with which it reports refused logins here."""
        others = settings.get(ERROR_CALLBACK)

        def heard(error: KafkaError) -> None:
            if error.code() == KafkaError._AUTHENTICATION and REFUSED_LOGIN in error.str():
                self._refused_until = time.monotonic() + HEARD_SECONDS
            if others is not None:
                others(error)

        return {**settings, ERROR_CALLBACK: heard}

    def ask_for_reports(self, admin: AdminClient) -> None:
        """An admin client reports only while it is polled."""
        self._admin = admin

    def explain(self, error: ClientError) -> ClientError:
        """The error itself, or LoginFailed or TlsFailed instead of Unreachable. May wait for a few seconds."""
        if not isinstance(error, Unreachable):
            return error
        if self._admin is not None:
            self._admin.poll(0)
        if time.monotonic() < self._refused_until:
            return login_refused(self._servers, self._security.settings, "invalid credentials")
        return find_reason(self._servers, self._security.current()) or error


def find_reason(servers: str, security: SecuritySettings) -> LoginFailed | TlsFailed | None:
    """Why no broker lets a client with these settings in; None if one does, or if that cannot be said. Tries once."""
    settings = ClientSettings(
        bootstrap_servers=servers,
        request_timeout_ms=max(LEAST_MS, TRY_MS // (servers.count(",") + 1)),
        retry_for_ms=0,
        security=security,
    )
    try:
        if security.mechanism not in ("", *MECHANISMS):
            return _missing(settings, security.mechanism)
        with Cluster(settings) as cluster:
            cluster.topics([])
    except (LoginFailed, TlsFailed) as reason:
        return None if reason.retriable else reason
    except PenstockError:
        pass
    return None


def _missing(settings: ClientSettings, mechanism: str) -> LoginFailed | None:
    """For a mechanism that librdkafka knows, and this client does not."""
    silent = replace(settings, security=replace(settings.security, mechanism=""))
    return mechanism_missing(parse_servers(settings.bootstrap_servers)[0], silent, mechanism)
