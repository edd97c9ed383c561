"""Kafka's command line tools. Most tests let them log in at a secured node."""

import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.kafka.programs.builds import java
from tests.secured import PASSWORDS, SecuredNode

ACLS = "org.apache.kafka.tools.AclCommand"
CONFIGS = "kafka.admin.ConfigCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"


class Done(NamedTuple):
    code: int
    output: str


def properties(node: SecuredNode, user: str, password: str | None = None) -> dict[str, str]:
    """Settings of Java's clients: SASL_SSL with SCRAM-SHA-512."""
    login = f'username="{user}" password="{password or PASSWORDS[user]}"'
    return {
        "bootstrap.servers": node.address("tls"),
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f"org.apache.kafka.common.security.scram.ScramLoginModule required {login};",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": node.certificates.ca,
    }


def run_tool(
    node: SecuredNode,
    folder: Path,
    main: str,
    *arguments: str,
    user: str = "admin",
    password: str | None = None,
) -> Done:
    settings = folder / f"{user}.properties"
    lines = (f"{name}={value}\n" for name, value in properties(node, user, password).items())
    settings.write_text("".join(lines))
    return run_at(node.address("tls"), main, "--command-config", str(settings), *arguments)


def run_at(bootstrap_servers: str, main: str, *arguments: str) -> Done:
    """Without a login."""
    command = java(main, "--bootstrap-server", bootstrap_servers, *arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return Done(done.returncode, done.stdout + done.stderr)
