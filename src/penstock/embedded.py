"""A broker inside your process: `with Broker() as broker:` and any Kafka client can use it.

It runs on an event loop in a thread of its own, independent of any loop of your program. Several can run side by side.
After `close()` nothing is left of it: no thread, no port, and no file unless you gave it a data folder.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import uvloop

from penstock.config import (
    Address,
    GroupSettings,
    Limits,
    NodeConfig,
    SchemaRegistrySettings,
    ShareGroupSettings,
)
from penstock.log import Disk
from penstock.service import Service

ANY_PORT = Address("127.0.0.1", 0)


class Broker:
    """A running broker. It serves from the moment it is constructed until `close()`.

    Broker()                                in memory, on free ports of 127.0.0.1
    Broker(data_dir="data")                 on disk: acknowledged records survive a restart
    Broker(num_partitions=3)                partitions of topics that are created on first use
    Broker(topic_defaults={"retention.ms": "60000"})
    Broker(users={"admin": "secret", "alice": "also secret"})     clients must log in
    Broker(tls=True)                        TLS on both ports, with certificates that are thrown away in the end
    """

    def __init__(
        self,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        kafka: str | None = None,
        http: str | None = "127.0.0.1:0",
        node_id: int = 1,
        auto_create_topics: bool = True,
        num_partitions: int = 1,
        topic_defaults: dict[str, str] | None = None,
        status_topic: str = "",
        schema_registry: str = "",
        groups: GroupSettings | None = None,
        share_groups: ShareGroupSettings | None = None,
        limits: Limits | None = None,
        disk: Disk | None = None,
        tls: bool = False,
        users: Mapping[str, str] | None = None,
        super_users: Sequence[str] = ("admin",),
    ) -> None:
        """`users`: names and passwords. With it, clients must log in and may do only what an access rule allows;
        `super_users` may do everything. `status_topic` names a topic for the status log; without it there is none.
        `schema_registry` is the address of one: the console shows Avro and Protobuf by its schemas. `disk` replaces
        the file system, so that a test can make it fail."""
        self._certificates = _ThrowAwayCertificates() if tls else None
        config = NodeConfig(
            node_id=node_id,
            memory=data_dir is None,
            data_dir=os.fspath(data_dir) if data_dir is not None else "",
            kafka=Address.parse("kafka", kafka) if kafka is not None else ANY_PORT,
            http=Address.parse("http", http) if http is not None else None,
            auto_create_topics=auto_create_topics,
            num_partitions=num_partitions,
            topic_defaults=topic_defaults or {},
            status_topic=status_topic,
            schema_registry=SchemaRegistrySettings(url=schema_registry),
            groups=groups or GroupSettings(),
            share_groups=share_groups or ShareGroupSettings(),
            limits=limits or Limits(),
            tls_cert=self._certificates.cert if self._certificates else None,
            tls_key=self._certificates.key if self._certificates else None,
            require_login=users is not None,
            super_users=tuple(f"User:{name}" for name in super_users),
        )
        self._thread = _BrokerThread(config, disk, users)
        try:
            self._thread.start_and_wait()
        except BaseException:
            self._throw_away()
            raise

    def __repr__(self) -> str:
        http = self._thread.service.http_url
        where = f"{self.bootstrap_servers}{'' if http is None else f', {http}'}"
        return f"<Broker {where}{'' if self._thread.is_running else ' (closed)'}>"

    @property
    def bootstrap_servers(self) -> str:
        """`host:port`, as Kafka clients expect it."""
        return str(self._thread.service.kafka_address)

    @property
    def admin_password(self) -> str | None:
        """The password of the user `admin`, if this broker requires login and has made that user."""
        return self._thread.admin_password

    @property
    def http_url(self) -> str:
        """The base URL of `/health`, `/ready` and `/metrics`."""
        url = self._thread.service.http_url
        if url is None:
            raise ValueError(
                "this broker was started without an HTTP port: leave `http` at its default to have one"
            )
        return url

    @property
    def console_url(self) -> str:
        """The address of the web console, for a browser."""
        return f"{self.http_url}/console/"

    @property
    def tls_ca_file(self) -> str | None:
        """The authority that clients of a broker with `tls=True` must trust, a PEM file; None without TLS."""
        return self._certificates.ca if self._certificates is not None else None

    def client_settings(self, user: str | None = None) -> dict[str, str]:
        """What a client that is built on librdkafka needs to connect: `Producer(broker.client_settings("alice"))`.
        `user`: one of `users`, or `admin`; without it the client does not log in."""
        settings = {"bootstrap.servers": self.bootstrap_servers}
        protocol = "plaintext" if self._certificates is None else "ssl"
        if user is not None:
            settings |= {
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": user,
                "sasl.password": self._password_of(user),
            }
            protocol = f"sasl_{protocol}"
        if self._certificates is not None:
            settings["ssl.ca.location"] = self._certificates.ca
        return settings if protocol == "plaintext" else {**settings, "security.protocol": protocol}

    def client_arguments(self, user: str | None = None) -> dict[str, Any]:
        """The same for `Client`, `AsyncClient` and cliques: `Client(broker.bootstrap_servers,
        **broker.client_arguments("alice"))`."""
        arguments = {} if user is None else {"user": user, "password": self._password_of(user)}
        return arguments if self._certificates is None else {**arguments, "tls_ca": self._certificates.ca}

    def _password_of(self, user: str) -> str:
        known = dict(self._thread.users or {})
        if self.admin_password is not None:
            known.setdefault("admin", self.admin_password)
        if user not in known:
            raise ValueError(
                f"user={user!r}: expected one of {', '.join(known) or 'users=...'}, given to the broker"
            )
        return known[user]

    def close(self) -> None:
        """Flushes, closes every connection and file, and ends the thread. Calling it twice is fine."""
        try:
            self._thread.stop_and_wait()
        finally:
            self._throw_away()

    def _throw_away(self) -> None:
        if self._certificates is not None:
            self._certificates.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _ThrowAwayCertificates:
    """Of a broker with `tls=True`, in a folder that ends with it."""

    def __init__(self) -> None:
        from pathlib import Path
        from tempfile import TemporaryDirectory

        from penstock.node.tls.dev_certificates import LOCAL_HOSTS, DevCertificates

        self._folder = TemporaryDirectory(prefix="penstock-certs-")
        made = DevCertificates(Path(self._folder.name))
        cert, key = made.issue("broker", common_name="broker", hosts=LOCAL_HOSTS)
        self.ca, self.cert, self.key = str(made.ca), str(cert), str(key)

    def remove(self) -> None:
        self._folder.cleanup()


class _BrokerThread:
    """The thread with the event loop of the service."""

    def __init__(self, config: NodeConfig, disk: Disk | None, users: Mapping[str, str] | None = None) -> None:
        self._config = config.validate()
        self._disk = disk
        self.users = users
        self.admin_password: str | None = None
        self._thread = threading.Thread(target=self._main, name="penstock-broker", daemon=True)
        self._started = threading.Event()
        self._problem: BaseException | None = None
        self._call_stop: Callable[[], object] | None = None
        self.service: Service

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def start_and_wait(self) -> None:
        self._thread.start()
        self._started.wait()
        if self._problem is not None:
            self._join()

    def stop_and_wait(self) -> None:
        """May be called from any thread, any number of times."""
        call_stop, self._call_stop = self._call_stop, None
        if call_stop is not None:
            call_stop()
        self._join()

    def _join(self) -> None:
        """Waits for the end of the thread; raises its error."""
        self._thread.join()
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve())

    def _set_admin_password(self, user: str, password: str) -> None:
        self.admin_password = password

    async def _serve(self) -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        try:
            self.service = Service(
                self._config, disk=self._disk, users=self.users, on_first_user=self._set_admin_password
            )
            await self.service.start()
        except BaseException as problem:  # noqa: BLE001 - raised again in the caller's thread
            self._problem = problem
            return
        else:
            self._call_stop = lambda: loop.call_soon_threadsafe(stop.set)
        finally:
            self._started.set()
        await stop.wait()
        try:
            await self.service.stop()
        except Exception as problem:  # noqa: BLE001 - raised again in the caller's thread
            self._problem = problem
