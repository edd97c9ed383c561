"""WebSockets that say nothing, that send nothing but pings, or go away while the node tells them why it closes them."""

import time

from websockets.frames import Frame, Opcode

from tools.hostile.attack import Attack
from tools.hostile.websocket import open_websocket, send_text

SILENT = 1_000
HELD_SECONDS = 5.0
PINGS = 200_000
GONE = 300
PATHS = ("/v1/push", "/v1/work")
WRONG_FRAMES = (
    '{"type": "ping"}',
    "nonsense",
    '{"type": "subscribe", "subscription": "gone", "topics": ["no-such-topic"]}',
    '{"type": "work", "queue": "gone", "topics": ["no-such-topic"]}',
)


def send_empty_pings(attack: Attack) -> None:
    """One read of the socket holds tens of thousands of them."""
    ping = Frame(Opcode.PING, b"").serialize(mask=True)
    for path in PATHS:
        open_websocket(attack, path).sendall(ping * PINGS)


def say_nothing(attack: Attack) -> None:
    for number in range(SILENT):
        open_websocket(attack, PATHS[number % len(PATHS)])
    time.sleep(HELD_SECONDS)


def go_away_while_told_why(attack: Attack) -> None:
    for number in range(GONE):
        one = open_websocket(attack, PATHS[number % len(PATHS)])
        send_text(one, WRONG_FRAMES[number % len(WRONG_FRAMES)])
        attack.close(one, reset=True)
