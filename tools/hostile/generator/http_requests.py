"""The HTTP port: every operation of the OpenAPI document that the node serves, in turn."""

import random
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from tools.hostile.attack import Attack, decoded, http_request, read_response
from tools.hostile.generator.json_values import JsonMaker
from tools.hostile.generator.strikes import command, strike_all

DOCUMENT = "/v1/openapi.json"
OUTSIDE = (
    ("GET", "/health"),
    ("GET", "/ready"),
    ("GET", "/metrics"),
    ("GET", "/nowhere"),
    ("GET", "/v1/push"),
)
"""Paths that the document does not describe."""
HOSTILITIES = (0.0, 0.05, 0.3)
ANSWER_SECONDS = 0.1
PIPELINED = 20
TINY_CHUNKS = 5_000
INTERNAL_ERROR = 500


def attack_http(attack: Attack) -> None:
    strike_all(attack, HttpRequests(attack))


class HttpRequests:
    name = "http-requests"

    def __init__(self, attack: Attack) -> None:
        self._attack = attack
        document = decoded(attack.http("GET", DOCUMENT))
        self._schemas = document["components"]["schemas"]
        self._operations: list[tuple[str, str, dict[str, Any]]] = [
            (method.upper(), path, operation)
            for path, item in document["paths"].items()
            for method, operation in item.items()
        ]
        self._operations += [(method, path, {}) for method, path in OUTSIDE]

    def strike(self, number: int, chance: random.Random) -> str:
        method, path, operation = self._operations[number % len(self._operations)]
        maker = JsonMaker(chance, self._schemas, chance.choice(HOSTILITIES))
        target = self._target(path, operation, maker, chance)
        body = self._body(operation, maker)
        damage, data = damaged(chance, method, target, body)
        one = self._attack.connect(self._attack.node.http_port)
        one.settimeout(ANSWER_SECONDS)
        description = f"{method} {path}, {len(data)} bytes, {damage}"
        with suppress(OSError):  # closed, or no answer in time
            one.sendall(data)
            if read_response(one).status == INTERNAL_ERROR:
                again = command(self._attack, self, number)
                self._attack.fail(
                    f"attack {number}, {description}, was answered with 500; run it again: {again}"
                )
        self._attack.close(one, reset=chance.random() < 0.2)
        return description

    def _target(self, path: str, operation: dict[str, Any], maker: JsonMaker, chance: random.Random) -> str:
        query = []
        for row in operation.get("parameters", ()):
            value = maker.make(row["schema"], row["name"])
            text = quote(
                value if isinstance(value, str) else maker.text(value), safe="", errors="surrogatepass"
            )
            if row["in"] == "path":
                path = path.replace(f"{{{row['name']}}}", text[:60_000])
            elif row["required"] or chance.random() < 0.5:
                query.append(f"{row['name']}={text[:60_000]}")
        return f"{path}?{'&'.join(query)}" if query else path

    def _body(self, operation: dict[str, Any], maker: JsonMaker) -> bytes | None:
        if "requestBody" not in operation:
            return None
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        return maker.text(maker.make(schema)).encode()


def damaged(chance: random.Random, method: str, target: str, body: bytes | None) -> tuple[str, bytes]:
    """The request, mostly as it is; otherwise with some damage, and the name of that."""
    damage = chance.choice(
        (*["none"] * 7, "cut", "chunked", "length", "headers", "pipelined", "flipped", "method")
    )
    request = http_request(method, target, body)
    if damage == "cut":
        return damage, request[: chance.randrange(1, len(request))]
    if damage == "chunked":
        head = http_request(method, target, headers=[("Transfer-Encoding", "chunked")])
        size = chance.choice((b"1", b"0001", b"ffffffffffffffff", b"-1", b"zz"))
        return damage, head + (size + b"\r\n7\r\n") * chance.choice((1, TINY_CHUNKS)) + b"0\r\n\r\n"
    if damage == "length":
        length = chance.choice(("-1", "1", "99999999999999999999", "x", "1000000"))
        return damage, http_request(method, target, headers=[("Content-Length", length)]) + (body or b"")
    if damage == "headers":
        many = [(f"X-{number}", "x" * 50) for number in range(chance.choice((1, 100, 2_000)))]
        return damage, http_request(method, target, body, headers=many)
    if damage == "pipelined":
        return damage, request * PIPELINED
    if damage == "flipped":
        flipped = bytearray(request)
        for _ in range(chance.randint(1, 4)):
            flipped[chance.randrange(len(flipped))] = chance.randrange(256)
        return damage, bytes(flipped)
    if damage == "method":
        return damage, http_request(
            chance.choice(("HEAD", "OPTIONS", "PUT", "TRACE", "x" * 5_000)), target, body
        )
    return damage, request
