"""TLS between nodes: both sides show certificates, and a process without one of the cluster's is not a node."""

import asyncio
import ssl
from pathlib import Path

import msgspec
import pytest

from penstock.config import Limits
from tests.tls import Certificates

from .peer_nodes import KEY, KIND, PATIENCE_SECONDS, PeerNodes


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelname == "WARNING"]


async def test_frames_of_all_sizes_arrive_in_order(peer_nodes: PeerNodes, certificates: Certificates) -> None:
    tls = certificates.inter_node()
    one = await peer_nodes.node(1, key=KEY, tls=tls)
    two = await peer_nodes.node(2, key=KEY, tls=tls)
    one.dial(two)
    await one.until_connected(2)
    await two.until_connected(1)
    bodies = [bytes([number]) * size for number, size in enumerate((1, 100, 20_000, 5_000_000, 3))]
    for body in bodies:
        assert one.network.send(two.node, KIND, body)
        assert two.network.send(one.node, KIND, body)
    for node in (one, two):
        await node.until(lambda node=node: len(node.frames) == len(bodies))
        assert [body for _, _, body in node.frames] == bodies


async def test_a_node_of_another_authority_is_refused_with_a_line(
    peer_nodes: PeerNodes, certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It trusts this cluster's authority, as anyone may, but has no certificate of it."""
    stranger = Certificates(tmp_path / "stranger")
    own = stranger.inter_node()
    tls = msgspec.structs.replace(own, ca=certificates.ca)
    one = await peer_nodes.node(1, key=KEY, tls=certificates.inter_node())
    two = await peer_nodes.node(2, key=KEY, tls=tls)
    two.dial(one)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not warnings(caplog):
            await asyncio.sleep(0.01)
    assert "its certificate was refused" in warnings(caplog)[0]
    assert not one.network.connected()
    assert not two.network.connected()


async def test_a_node_does_not_talk_to_a_server_of_another_authority(
    peer_nodes: PeerNodes, certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "penstock.peers")
    stranger = Certificates(tmp_path / "stranger")
    own = stranger.inter_node()
    one = await peer_nodes.node(1, key=KEY, tls=certificates.inter_node())
    two = await peer_nodes.node(2, key=KEY, tls=msgspec.structs.replace(own, ca=certificates.ca))
    one.dial(two)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while "tls: its certificate was refused" not in caplog.text:
            await asyncio.sleep(0.01)
    assert not one.network.connected()


async def test_a_certificate_must_name_the_host_that_was_dialled(
    peer_nodes: PeerNodes, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "penstock.peers")
    cert, key = certificates.issue("elsewhere", "elsewhere.example")
    elsewhere = msgspec.structs.replace(certificates.inter_node(), cert=cert, key=key)
    one = await peer_nodes.node(1, key=KEY, tls=certificates.inter_node())
    two = await peer_nodes.node(2, key=KEY, tls=elsewhere)
    one.dial(two)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while "ip address mismatch" not in caplog.text:
            await asyncio.sleep(0.01)
    assert not one.network.connected()


async def test_names_are_not_compared_if_the_setting_says_so(
    peer_nodes: PeerNodes, certificates: Certificates
) -> None:
    cert, key = certificates.issue("elsewhere", "elsewhere.example")
    lax = msgspec.structs.replace(certificates.inter_node(), cert=cert, key=key, check_hostname=False)
    one = await peer_nodes.node(1, key=KEY, tls=lax)
    two = await peer_nodes.node(2, key=KEY, tls=lax)
    one.dial(two)
    await one.until_connected(2)


async def test_a_client_without_a_certificate_gets_nowhere(
    peer_nodes: PeerNodes, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    one = await peer_nodes.node(1, key=KEY, tls=certificates.inter_node())
    reader, writer = await asyncio.open_connection(
        one.address.host, one.address.port, ssl=certificates.client_context(), server_hostname="localhost"
    )
    with pytest.raises(ssl.SSLError):
        await reader.read()
    writer.close()
    [line] = warnings(caplog)
    assert "peer did not return a certificate" in line


@pytest.mark.parametrize("has_tls", [True, False])
async def test_a_node_with_tls_and_one_without_say_what_is_wrong(
    peer_nodes: PeerNodes, certificates: Certificates, caplog: pytest.LogCaptureFixture, has_tls: bool
) -> None:
    """The node that is dialled has TLS, or has none."""
    tls = certificates.inter_node()
    dialled = await peer_nodes.node(1, key=KEY, tls=tls if has_tls else None)
    dials = await peer_nodes.node(2, key=KEY, tls=None if has_tls else tls)
    dials.dial(dialled)
    expected = "is a node without inter_node_tls" if has_tls else "this node has no inter_node_tls"
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not any(expected in line for line in warnings(caplog)):
            await asyncio.sleep(0.01)


async def test_the_key_is_needed_on_top_of_the_certificate(
    peer_nodes: PeerNodes, certificates: Certificates
) -> None:
    one = await peer_nodes.node(1, key=KEY, tls=certificates.inter_node())
    two = await peer_nodes.node(2, key=b"another key, for no good reason", tls=certificates.inter_node())
    two.dial(one)
    await two.until(lambda: two.refusals)
    assert "cluster keys differ" in str(two.refusals[0][1])


async def test_a_silent_server_does_not_hold_up_the_dialler(
    peer_nodes: PeerNodes, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "penstock.peers")
    silent = await asyncio.start_server(lambda reader, writer: asyncio.sleep(0), "127.0.0.1", 0)
    limits = Limits(peer_handshake_timeout_ms=50)
    one = await peer_nodes.node(1, key=KEY, tls=certificates.inter_node(), limits=limits)
    address = msgspec.structs.replace(one.address, port=silent.sockets[0].getsockname()[1])
    one.network.dial_seeds([address])
    async with asyncio.timeout(PATIENCE_SECONDS):
        while "no tls handshake within 50 ms" not in caplog.text:
            await asyncio.sleep(0.01)
    silent.close()
