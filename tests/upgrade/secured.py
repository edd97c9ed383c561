"""A node that requires logins, and all that administrators can see of its users, rules, roles and quotas."""

import base64
from pathlib import Path
from typing import Any

from penstock.client.security_settings import SecuritySettings
from penstock.client.wire import ClientSettings, Connection
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
)
from penstock.kafka.wire.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from tests.kafka.quota_requests import Entity, entry
from tests.upgrade.brokers import Brokers

Json = dict[str, Any]
SECURED = "secured"
"""The name of its fixture."""


class SecuredBroker(Brokers):
    """One node. It is asked as `admin`, whose password it prints when it makes its data folder."""

    def __init__(self, folder: Path, password: str = "") -> None:
        super().__init__(folder, 1)
        self.nodes[1].flags = ("--require-login",)
        self.password = password

    def wait_healthy(self) -> None:
        self.password = self.password or self._printed_password()
        self.log_in("admin", self.password)
        super().wait_healthy()

    def _printed_password(self) -> str:
        return self.nodes[1].wait_said("admin password:").partition(":")[2].strip()

    def log_in(self, user: str, password: str) -> None:
        encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
        self.login = {"Authorization": f"Basic {encoded}"}

    def librdkafka(self) -> dict[str, str]:
        """The settings by which `admin` logs in, with underscores for dots."""
        return {
            "security_protocol": "sasl_plaintext",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_username": "admin",
            "sasl_password": self.password,
        }

    # --- quotas, which have no HTTP API

    def kafka(self, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> Connection:
        login = SecuritySettings(mechanism=mechanism, user=user, password=password)
        host, _, port = self.servers.rpartition(":")
        return Connection(host, int(port), ClientSettings(bootstrap_servers=self.servers, security=login))

    def set_quotas(self, entity: Entity, **quotas: float | None) -> None:
        request = AlterClientQuotasRequest(entries=[entry(entity, **quotas)])
        answer = self.kafka("admin", self.password).call(ApiKey.ALTER_CLIENT_QUOTAS, request)
        assert isinstance(answer, AlterClientQuotasResponse)
        assert [one.error_code for one in answer.entries] == [0]

    def quotas(self) -> list[Json]:
        answer = self.kafka("admin", self.password).call(
            ApiKey.DESCRIBE_CLIENT_QUOTAS, DescribeClientQuotasRequest()
        )
        assert isinstance(answer, DescribeClientQuotasResponse)
        return [
            {
                "entity": {part.entity_type: part.entity_name for part in found.entity},
                "quotas": {value.key: value.value for value in found.values},
            }
            for found in answer.entries or ()
        ]

    # --- everything

    def everything(self) -> Json:
        users = self.ask("GET", "/v1/users")["users"]
        return {
            "users": users,
            "tokens": {
                one["user"]: self.ask("GET", f"/v1/users/{one['user']}/tokens")["tokens"] for one in users
            },
            "acls": self.ask("GET", "/v1/acls")["acls"],
            "roles": self.ask("GET", "/v1/roles")["roles"],
            "grants": self.ask("GET", "/v1/grants")["grants"],
            "quotas": self.quotas(),
        }
