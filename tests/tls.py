"""Certificates for tests, and nodes with listeners of their own."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trustme

from penstock.config import InterNodeTls, NodeConfig, TlsSettings
from penstock.embedded import _BrokerThread
from penstock.service import Service


class Certificates:
    """An authority, and files of what it has signed."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.authority = trustme.CA()
        self.ca = str(folder / "ca.pem")
        self.authority.cert_pem.write_to_path(self.ca)
        self.cert, self.key = self.issue("server", "localhost", "127.0.0.1")
        self.client_cert, self.client_key = self.issue(
            "client", "orders@example.org", common_name="orders", organization_name="Example"
        )

    def issue(self, name: str, *identities: str, **subject: str) -> tuple[str, str]:
        """The files of a new certificate and its key. Files of that name are replaced."""
        issued = self.authority.issue_cert(*identities, **subject)
        cert, key = str(self.folder / f"{name}.pem"), str(self.folder / f"{name}.key")
        issued.private_key_pem.write_to_path(key)
        issued.cert_chain_pems[0].write_to_path(cert)
        return cert, key

    def settings(self, *, ca: bool = False, **settings: str) -> TlsSettings:
        return TlsSettings(cert=self.cert, key=self.key, ca=self.ca if ca else None, **settings)

    def inter_node(self) -> InterNodeTls:
        return InterNodeTls(cert=self.cert, key=self.key, ca=self.ca)

    def client_context(self, *, certificate: bool = False) -> ssl.SSLContext:
        """For a client that believes this authority, and perhaps shows its certificate."""
        context = ssl.create_default_context(cafile=self.ca)
        if certificate:
            context.load_cert_chain(self.client_cert, self.client_key)
        return context


@contextmanager
def running(config: NodeConfig) -> Iterator[Service]:
    """A node in a thread of its own."""
    thread = _BrokerThread(config, None)
    thread.start_and_wait()
    try:
        yield thread.service
    finally:
        thread.stop_and_wait()
