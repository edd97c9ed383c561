"""A WebSocket that goes away while it is told why it is closed: the endpoint ends without an error."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from penstock.config import Limits
from penstock.web import push, work
from penstock.web.websocket_frames import has_ended


async def lost_socket() -> WebSocket:
    """An accepted WebSocket whose client is gone: the next send fails, as uvicorn's does."""

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        if message["type"] != "websocket.accept":
            raise OSError("the client is gone")

    socket = WebSocket({"type": "websocket", "headers": []}, receive, send)
    await socket.accept()
    return socket


async def told_after_a_failed_send(connection: Any) -> None:
    socket = connection._socket = await lost_socket()
    connection._slow_seconds = 1.0
    connection._node = SimpleNamespace(config=SimpleNamespace(limits=Limits()))
    with pytest.raises(WebSocketDisconnect):
        await connection._send(b"frame")
    assert has_ended(socket)
    await connection._end("inactive", "no ack for a while")


@pytest.mark.parametrize("kind", [push._Connection, work._Connection])
def test_a_socket_that_is_gone_is_not_told_again(kind: type) -> None:
    asyncio.run(told_after_a_failed_send(kind.__new__(kind)))


@pytest.mark.parametrize("kind", [push._Connection, work._Connection])
def test_a_socket_that_goes_away_while_it_is_told_ends_quietly(kind: type) -> None:
    async def run() -> None:
        connection: Any = kind.__new__(kind)
        connection._socket = await lost_socket()
        connection._slow_seconds = 1.0
        connection._node = SimpleNamespace(config=SimpleNamespace(limits=Limits()))
        await connection._end("inactive", "no ack for a while")

    asyncio.run(run())
