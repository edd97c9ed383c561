"""The Kafka port: every API and version of the wire schema, in turn, with hostile values and as damaged frames."""

import random
from contextlib import suppress
from typing import Any, Final

from penstock.errors import PenstockError
from penstock.kafka.wire import ApiKey, Message, decode_response, encode_request, join
from penstock.kafka.wire.apis import APIS, request_class
from penstock.kafka.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.kafka.raw import RawClient
from tests.kafka.requests import ask
from tools.hostile.attack import Attack
from tools.hostile.generator.kafka_values import MessageMaker
from tools.hostile.generator.strikes import strike_all

KINDS: Final = [
    (ApiKey(key), version) for key, api in APIS.items() for version in range(api.first, api.last + 1)
]
HOSTILITIES = (0.0, 0.05, 0.2, 0.6)
ANSWER_SECONDS = 0.1
OPENING_SECONDS = 2.0
PIPELINED = 30
READ_BYTES = 65_536
LENGTH_BYTES = 4
HUGE_COUNTS = (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\xff\xff\xff\xff\x0f", b"\x00\x01\x86\xa0")
LEARNED = ("member_id", "generation_id", "producer_id", "producer_epoch", "session_id", "member_epoch")

OPENINGS: Final[dict[ApiKey, tuple[ApiKey, int]]] = {
    ApiKey.SYNC_GROUP: (ApiKey.JOIN_GROUP, 3),
    ApiKey.HEARTBEAT: (ApiKey.JOIN_GROUP, 3),
    ApiKey.LEAVE_GROUP: (ApiKey.JOIN_GROUP, 3),
    ApiKey.OFFSET_COMMIT: (ApiKey.JOIN_GROUP, 3),
    ApiKey.SHARE_FETCH: (ApiKey.SHARE_GROUP_HEARTBEAT, 1),
    ApiKey.SHARE_ACKNOWLEDGE: (ApiKey.SHARE_FETCH, 1),
    ApiKey.PRODUCE: (ApiKey.INIT_PRODUCER_ID, 4),
    ApiKey.FETCH: (ApiKey.FETCH, 11),
}
"""Requests after which another one gets further."""


def attack_kafka(attack: Attack) -> None:
    strike_all(attack, KafkaRequests("kafka-requests", attack))


def attack_kafka_cluster(attack: Attack) -> None:
    strike_all(attack, KafkaRequests("kafka-cluster", attack))


class KafkaRequests:
    def __init__(self, name: str, attack: Attack) -> None:
        self.name = name
        self._attack = attack
        with attack.kafka() as client:
            topics = [MetadataRequestTopic(name=name) for name in ("victim", "victim-wide")]
            answer = ask(client, ApiKey.METADATA, 12, MetadataRequest(topics=topics), MetadataResponse)
            self._topic_ids = [topic.topic_id for topic in answer.topics]

    def strike(self, number: int, chance: random.Random) -> str:
        api_key, version = KINDS[number % len(KINDS)]
        maker = MessageMaker(chance, self._topic_ids, chance.choice(HOSTILITIES))
        client = self._attack.kafka(chance.choice(self._attack.brokers.nodes))
        try:
            if api_key in OPENINGS and chance.random() < 0.5:
                self._open(client, maker, *OPENINGS[api_key])
            message = maker.make(request_class(api_key), version)
            frame = join(encode_request(api_key, version, number, "hostile", message))
            damage, data = damaged(chance, frame)
            client.socket.settimeout(ANSWER_SECONDS)
            with suppress(OSError):
                client.send(data)
                client.socket.recv(READ_BYTES)
            return f"{api_key.name} v{version}, {len(data)} bytes, {damage}"
        finally:
            self._attack.close(client.socket, reset=chance.random() < 0.2)

    def _open(self, client: RawClient, maker: MessageMaker, api_key: ApiKey, version: int) -> None:
        usual = MessageMaker(random.Random(version), self._topic_ids, 0.0)
        client.socket.settimeout(OPENING_SECONDS)
        with suppress(OSError, PenstockError):
            client.request(api_key, version, usual.make(request_class(api_key), version))
            _, answer = decode_response(api_key, version, client.read_frame())
            maker.learned |= {name: getattr(answer, name) for name in LEARNED if _has(answer, name)}
            maker.learned["generation_id_or_member_epoch"] = maker.learned.get("generation_id", -1)


def _has(message: Message, name: str) -> bool:
    value: Any = getattr(message, name, None)
    return value is not None


def damaged(chance: random.Random, frame: bytes) -> tuple[str, bytes]:
    """The frame, mostly as it is; otherwise with some damage, and the name of that."""
    damage = chance.choice((*["none"] * 6, "cut", "short", "flipped", "huge count", "pipelined", "trailing"))
    body = bytearray(frame[LENGTH_BYTES:])
    at = chance.randrange(8, len(body)) if len(body) > 8 else 0
    if damage == "cut":
        return damage, framed(body[:at])
    if damage == "short":
        return damage, frame[: LENGTH_BYTES + at]
    if damage == "flipped":
        for _ in range(chance.randint(1, 4)):
            body[chance.randrange(len(body))] = chance.randrange(256)
        return damage, framed(body)
    if damage == "huge count":
        count = chance.choice(HUGE_COUNTS)
        body[at : at + len(count)] = count
        return damage, framed(body)
    if damage == "pipelined":
        return damage, frame * PIPELINED
    if damage == "trailing":
        return damage, framed(body + chance.randbytes(100))
    return damage, frame


def framed(body: bytes | bytearray) -> bytes:
    return len(body).to_bytes(LENGTH_BYTES, "big") + bytes(body)
