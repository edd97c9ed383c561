"""The WebSockets of push and of queues: every verb that their frames have, from the structs that decode them."""

import random
from contextlib import suppress
from typing import Any

import msgspec
from websockets.frames import Frame, Opcode

from penstock.web import push_frames, work_frames
from tools.hostile.attack import Attack
from tools.hostile.generator.json_values import JsonMaker
from tools.hostile.generator.strikes import strike_all
from tools.hostile.generator.values import GROUPS, TOPICS
from tools.hostile.websocket import open_websocket

ANSWER_SECONDS = 0.05
READ_BYTES = 65_536
HOSTILITIES = (0.0, 0.05, 0.3)
LATER_FRAMES = 4
REFS = "#/$defs/{name}"
FIRST_FRAMES = {
    "/v1/push": lambda chance: {
        "type": "subscribe",
        "subscription": chance.choice(GROUPS),
        "topics": [chance.choice(TOPICS[:2])],
        "read_old": True,
        "take_over": True,
        "credit": chance.choice((1, 100, 100_000)),
    },
    "/v1/work": lambda chance: {
        "type": "work",
        "queue": "victims",
        "topics": ["victim"],
        "credit": chance.choice((0, 1, 100, 100_000)),
    },
}


class Verb:
    """One kind of frame of one path, and its schema."""

    def __init__(self, path: str, kind: type[msgspec.Struct]) -> None:
        self.path = path
        self.name = str(kind.__struct_config__.tag)
        (self.schema,), self.definitions = msgspec.json.schema_components([kind], ref_template=REFS)


VERBS = [
    *(Verb("/v1/push", kind) for kind in push_frames.AnyFrame.__args__),
    *(Verb("/v1/work", kind) for kind in work_frames.AnyFrame.__args__),
]


def attack_websockets(attack: Attack) -> None:
    strike_all(attack, WebSocketFrames(attack))


class WebSocketFrames:
    name = "websocket-frames"

    def __init__(self, attack: Attack) -> None:
        self._attack = attack

    def strike(self, number: int, chance: random.Random) -> str:
        verb = VERBS[number % len(VERBS)]
        maker = JsonMaker(chance, verb.definitions, chance.choice(HOSTILITIES))
        one = open_websocket(self._attack, verb.path)
        one.settimeout(ANSWER_SECONDS)
        description = f"{verb.path} {verb.name}"
        try:
            with suppress(OSError):
                if chance.random() < 0.8:
                    one.sendall(_text(maker.text(FIRST_FRAMES[verb.path](chance))))
                    one.recv(READ_BYTES)
                for _ in range(chance.randint(1, LATER_FRAMES)):
                    damage, data = damaged(chance, self._frame(verb, maker))
                    description += f", {damage} {len(data)} bytes"
                    one.sendall(data)
                one.recv(READ_BYTES)
        finally:
            self._attack.close(one, reset=chance.random() < 0.5)
        return description

    def _frame(self, verb: Verb, maker: JsonMaker) -> str:
        value: Any = maker.make(verb.schema)
        if isinstance(value, dict):
            value["type"] = verb.name
        return maker.text(value)


def _text(text: str) -> bytes:
    return Frame(Opcode.TEXT, text.encode()).serialize(mask=True)


def damaged(chance: random.Random, text: str) -> tuple[str, bytes]:
    """The frame, mostly as it is; otherwise in a way that the protocol does not allow."""
    damage = chance.choice(
        (*["text"] * 7, "binary", "fragments", "control", "unmasked", "cut", "flipped", "pings")
    )
    data = text.encode()
    frame = _text(text)
    if damage == "binary":
        return damage, Frame(Opcode.BINARY, data).serialize(mask=True)
    if damage == "fragments":
        head = Frame(Opcode.TEXT, b"", fin=False).serialize(mask=True)
        return damage, head + Frame(Opcode.CONT, b"", fin=False).serialize(mask=True) * chance.choice(
            (1, 3_000)
        )
    if damage == "control":
        code = chance.choice((0, 999, 1005, 65_535)).to_bytes(2, "big")
        return damage, Frame(Opcode.CLOSE, code + b"\xff").serialize(mask=True)
    if damage == "unmasked":
        return damage, Frame(Opcode.TEXT, data).serialize(mask=False)
    if damage == "cut":
        return damage, frame[: chance.randrange(1, len(frame))]
    if damage == "flipped":
        flipped = bytearray(frame)
        flipped[chance.randrange(min(10, len(flipped)))] ^= 1 << chance.randrange(8)
        return damage, bytes(flipped)
    if damage == "pings":
        payload, count = chance.choice(((b"x" * 125, 1_000), (b"", 40_000)))
        return damage, Frame(Opcode.PING, payload).serialize(mask=True) * count
    return damage, frame
