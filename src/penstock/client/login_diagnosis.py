"""Why no broker answers, if the reason is the login or TLS.

librdkafka tries again and again, and its requests then only time out. It reports a login that a broker refuses; for all
other reasons the client for batches is asked, which tries once and knows why it failed.
"""

import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from penstock.client.errors import ClientError, LoginFailed, TlsFailed, Unreachable
from penstock.client.security_arguments import ClientSecurity
from penstock.client.security_settings import MECHANISMS
from penstock.client.wire import ClientSettings, Cluster
from penstock.client.wire.login import login_refused
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
        if self._security.settings.mechanism not in ("", *MECHANISMS):
            return error
        return self._reason() or error

    def _reason(self) -> ClientError | None:
        servers = self._servers.count(",") + 1
        settings = ClientSettings(
            bootstrap_servers=self._servers,
            request_timeout_ms=max(LEAST_MS, TRY_MS // servers),
            retry_for_ms=0,
            security=self._security.current(),
        )
        try:
            with Cluster(settings) as cluster:
                cluster.topics([])
        except (LoginFailed, TlsFailed) as reason:
            return None if reason.retriable else reason
        except PenstockError:
            pass
        return None
