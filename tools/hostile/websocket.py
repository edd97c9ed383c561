"""A WebSocket as raw bytes, because libraries send no invalid frames."""

import base64
import os
import socket

from websockets.frames import Frame, Opcode

from tools.hostile.attack import Attack, http_request

END_OF_HEAD = b"\r\n\r\n"
MOST_HEAD_BYTES = 16_384


def open_websocket(attack: Attack, path: str) -> socket.socket:
    """After the upgrade. ConnectionError if the node refuses it."""
    one = attack.connect(attack.node.http_port)
    key = base64.b64encode(os.urandom(16)).decode()
    upgrade = [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", key),
    ]
    one.sendall(http_request("GET", path, headers=upgrade))
    head = b""
    while END_OF_HEAD not in head:
        part = one.recv(1)  # no byte of the first frame
        if not part or len(head) > MOST_HEAD_BYTES:
            raise ConnectionError(f"no upgrade: {head[:100]!r}")
        head += part
    if b" 101 " not in head:
        raise ConnectionError(f"no upgrade: {head[:100]!r}")
    return one


def send_text(one: socket.socket, text: str | bytes) -> None:
    data = text.encode() if isinstance(text, str) else text
    one.sendall(Frame(Opcode.TEXT, data).serialize(mask=True))
