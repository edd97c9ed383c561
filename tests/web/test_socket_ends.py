"""A WebSocket that goes away while it is told why it is closed: the endpoint ends without an error."""

import asyncio
from typing import Any

import pytest
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from penstock.web import push, work
from penstock.web.http_quotas import SocketQuota
from penstock.web.websocket_frames import FrameSender, has_ended
from penstock.web.websocket_protocol import PROTOCOL


class LostSocket:
    """The protocol of a WebSocket whose client is gone."""

    async def has_room(self, seconds: float) -> bool:
        return True

    async def receive(self) -> Message:
        return {"type": "websocket.connect"}

    async def send(self, message: Message) -> None:
        """As uvicorn's."""
        if message["type"] != "websocket.accept":
            raise OSError("the client is gone")


class NoQuota(SocketQuota):
    def __init__(self) -> None: ...

    def wait_seconds(self) -> float:
        return 0.0

    def sent(self, size: int) -> None: ...


async def connection_of(kind: type) -> Any:
    """A connection with an accepted WebSocket: the next send fails."""
    lost = LostSocket()
    socket = WebSocket({"type": "websocket", "headers": [], PROTOCOL: lost}, lost.receive, lost.send)
    await socket.accept()
    connection: Any = kind.__new__(kind)
    connection._socket = socket
    connection._sender = FrameSender(socket, slow_seconds=1.0, quota=NoQuota())
    return connection


@pytest.mark.parametrize("kind", [push._Connection, work._Connection])
def test_a_socket_that_is_gone_is_not_told_again(kind: type) -> None:
    async def run() -> None:
        connection = await connection_of(kind)
        with pytest.raises(WebSocketDisconnect):
            await connection._sender.send(b"frame")
        assert has_ended(connection._socket)
        await connection._end("inactive", "no ack for a while")

    asyncio.run(run())


@pytest.mark.parametrize("kind", [push._Connection, work._Connection])
def test_a_socket_that_goes_away_while_it_is_told_ends_quietly(kind: type) -> None:
    async def run() -> None:
        connection = await connection_of(kind)
        await connection._end("inactive", "no ack for a while")

    asyncio.run(run())
