"""A port with TLS: bytes both ways under back pressure, bounded handshakes, and hints for clients without TLS."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.config import Limits
from penstock.node.tls import TlsPort, client_port
from tests.tls import Certificates

PATIENCE_SECONDS = 60.0
MEGABYTE = 1024 * 1024


class EchoBase(asyncio.BaseProtocol):
    """Sends back what comes. Counts how often it was told to wait."""

    def __init__(self) -> None:
        self.place = bytearray(100_000)
        self.pauses = 0
        self.is_paused = False
        self.received = 0
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=0)

    def pause_writing(self) -> None:
        self.pauses += 1
        self.is_paused = True
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.is_paused = False
        self.transport.resume_reading()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(exc)


class Echo(EchoBase, asyncio.BufferedProtocol):
    def get_buffer(self, sizehint: int) -> bytearray:
        return self.place

    def buffer_updated(self, nbytes: int) -> None:
        self.received += nbytes
        data = bytes(self.place[:nbytes])
        self.transport.writelines([data[:10], data[10:]])


class StreamEcho(EchoBase, asyncio.Protocol):
    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        self.transport.write(data)


class Served:
    """A port, its address, and the protocols of its connections."""

    def __init__(self, port: TlsPort) -> None:
        self.port = port
        self.made: list[Any] = []
        self.address = ("", 0)

    async def connect(self, context: ssl.SSLContext | None) -> "Streams":
        async with asyncio.timeout(PATIENCE_SECONDS):
            hostname = "localhost" if context is not None else None
            return await asyncio.open_connection(*self.address, ssl=context, server_hostname=hostname)

    async def is_refused(self, context: ssl.SSLContext) -> str:
        """Connects, and waits for the alert, which in TLS 1.3 comes after the client's side of the handshake."""
        with pytest.raises(ssl.SSLError) as caught:
            await (await self.connect(context))[0].read()
        return str(caught.value)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def serving(
    certificates: Certificates,
    *,
    protocol: Callable[[], Any] = Echo,
    limits: Limits | None = None,
    ca: bool = False,
    speaks_http: bool = False,
    room: int = 1000,
    **settings: str,
) -> AsyncIterator[Served]:
    tls = certificates.settings(ca=ca, **settings)
    port = client_port("the port", "tls", tls, limits or Limits(), room=lambda: room, speaks_http=speaks_http)
    served = Served(port)

    def new() -> Any:
        served.made.append(protocol())
        return served.made[-1]

    server = await asyncio.get_running_loop().create_server(port.wrap(new), "127.0.0.1", 0)
    served.address = server.sockets[0].getsockname()
    try:
        yield served
    finally:
        server.close()
        port.stop()


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("protocol", [Echo, StreamEcho])
async def test_megabytes_go_both_ways(
    certificates: Certificates, protocol: Callable[[], Any], version: ssl.TLSVersion
) -> None:
    context = certificates.client_context()
    context.minimum_version = context.maximum_version = version
    sent = bytes(range(256)) * (4 * MEGABYTE // 256)
    async with serving(certificates, protocol=protocol) as served:
        reader, writer = await served.connect(context)
        writer.write(sent)
        assert await reader.readexactly(len(sent)) == sent
        writer.close()
        assert await served.made[0].ended is None


async def test_a_client_that_does_not_read_is_felt_at_once_and_costs_little(
    certificates: Certificates,
) -> None:
    """`pause_writing` comes while a byte of ciphertext is unsent, so what the port holds is what it counts."""
    async with serving(certificates) as served:
        reader, writer = await served.connect(certificates.client_context())
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"x" * (32 * MEGABYTE))
        while not (served.made and served.made[0].is_paused):
            await asyncio.sleep(0)
        echo = served.made[0]
        assert 0 < echo.transport.get_write_buffer_size() < 2 * len(echo.place)
        assert echo.received < 16 * MEGABYTE
        reader._transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await reader.readexactly(32 * MEGABYTE)) == 32 * MEGABYTE
        assert echo.pauses > 1
        writer.close()


async def test_bytes_that_came_during_a_pause_are_delivered_after_it(certificates: Certificates) -> None:
    async with serving(certificates) as served:
        reader, writer = await served.connect(certificates.client_context())
        writer.write(b"a")
        await reader.readexactly(1)
        echo = served.made[0]
        echo.transport.pause_reading()
        writer.write(b"b" * 1000)
        await writer.drain()
        await asyncio.sleep(0)
        assert echo.received == 1
        echo.transport.resume_reading()
        assert await reader.readexactly(1000) == b"b" * 1000
        writer.close()


async def test_a_handshake_may_come_byte_by_byte(certificates: Certificates) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = certificates.client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    async with serving(certificates) as served:
        reader, writer = await served.connect(None)

        async def send() -> None:
            for byte in outgoing.read():
                writer.write(bytes([byte]))
                await asyncio.sleep(0)

        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                await send()
                incoming.write(await reader.read(65536))
        client.write(b"hello")
        await send()
        incoming.write(await reader.read(65536))
        assert client.read(100) == b"hello"
        writer.close()


@pytest.mark.parametrize(
    ("rules", "principal"),
    [("DEFAULT", "User:CN=orders,O=Example,OU="), ("RULE:^CN=([^,]+).*$/$1/U", "User:ORDERS")],
)
async def test_the_principal_is_the_subject_of_the_client_s_certificate(
    certificates: Certificates, rules: str, principal: str
) -> None:
    async with serving(certificates, ca=True, principal_rules=rules) as served:
        reader, writer = await served.connect(certificates.client_context(certificate=True))
        writer.write(b"x")
        await reader.readexactly(1)
        assert str(served.made[0].transport.get_extra_info("principal")).startswith(principal[:15])
        assert served.made[0].transport.get_extra_info("sslcontext")
        writer.close()


async def test_a_certificate_that_no_rule_maps_is_refused(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(certificates, ca=True, principal_rules="RULE:^CN=admin$/admin/") as served:
        reader, writer = await served.connect(certificates.client_context(certificate=True))
        assert await reader.read() == b""
        assert not served.made
        assert "no mapping rule matches the subject" in caplog.text
        writer.close()


async def test_a_wanted_certificate_may_be_missing_and_a_required_one_may_not(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(certificates, ca=True, client_auth="wanted") as served:
        reader, writer = await served.connect(certificates.client_context())
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        assert served.made[0].transport.get_extra_info("principal") is None
        writer.close()
    async with serving(certificates, ca=True) as served:
        assert "CERTIFICATE_REQUIRED" in await served.is_refused(certificates.client_context())
    assert "peer did not return a certificate" in caplog.text


async def test_a_certificate_of_another_authority_is_refused(
    certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = Certificates(tmp_path / "stranger")
    context = certificates.client_context()
    context.load_cert_chain(stranger.client_cert, stranger.client_key)
    async with serving(certificates, ca=True) as served:
        assert await served.is_refused(context)
        assert not served.made
    assert "its certificate was refused" in caplog.text


async def test_new_files_and_a_removed_authority_count_from_the_next_connection_on(
    certificates: Certificates, tmp_path: Path
) -> None:
    other = Certificates(tmp_path / "other")
    context = certificates.client_context(certificate=True)
    async with serving(certificates, ca=True) as served:
        reader, writer = await served.connect(context)
        other.authority.cert_pem.write_to_path(certificates.ca)
        served.port.files.look()
        served.port.files.look()
        assert await served.is_refused(context)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        writer.close()


@pytest.mark.parametrize(("limit", "room"), [(3, 1000), (1000, 3)])
async def test_silent_clients_are_closed_and_the_oldest_makes_room_for_others(
    certificates: Certificates, caplog: pytest.LogCaptureFixture, limit: int, room: int
) -> None:
    async with serving(certificates, limits=Limits(max_tls_handshakes=limit), room=room) as served:
        silent = [await served.connect(None) for _ in range(10)]
        for reader, _ in silent[:7]:
            assert await reader.read() == b""
        assert served.port.handshakes == 3
        reader, writer = await served.connect(certificates.client_context())
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        assert "too many are under way (limits.max_tls_handshakes)" in caplog.text
        for _, one in (*silent, (reader, writer)):
            one.close()


async def test_a_handshake_has_a_limited_time(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(certificates, limits=Limits(tls_handshake_timeout_ms=50)) as served:
        reader, writer = await served.connect(None)
        writer.write(b"\x16\x03\x01\x02")
        with suppress(ConnectionResetError):  # if the port had not read these bytes yet
            assert await reader.read() == b""
        assert served.port.handshakes == 0
        assert "limits.tls_handshake_timeout_ms=50" in caplog.text
        writer.close()


@pytest.mark.parametrize(("speaks_http", "hint"), [(True, b"use https://"), (False, b"for Kafka clients")])
async def test_plain_http_is_answered_with_a_hint(
    certificates: Certificates, speaks_http: bool, hint: bytes
) -> None:
    async with serving(certificates, speaks_http=speaks_http) as served:
        reader, writer = await served.connect(None)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert hint in answer
        writer.close()


async def test_a_kafka_client_without_tls_is_closed_with_a_line(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(certificates) as served:
        reader, writer = await served.connect(None)
        writer.write(b"\x00\x00\x00\x10\x00\x12")
        assert await reader.read() == b""
        assert "set security.protocol to SSL" in caplog.text
        writer.close()


async def test_a_probe_that_sends_nothing_leaves_no_line(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(certificates) as served:
        _, writer = await served.connect(None)
        while not served.port.handshakes:
            await asyncio.sleep(0)
        writer.close()
        while served.port.handshakes:
            await asyncio.sleep(0)
    assert caplog.text == ""


async def test_bytes_that_are_no_tls_end_an_open_connection(certificates: Certificates) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = certificates.client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    async with serving(certificates) as served:
        reader, writer = await served.connect(None)
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(65536))
        writer.write(outgoing.read() + b"\x17\x03\x03\x00\x20" + b"?" * 32)
        while not served.made:
            await asyncio.sleep(0)
        await served.made[0].ended
        writer.close()
