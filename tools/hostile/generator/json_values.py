"""JSON from JSON schemas: bodies of the HTTP API, and frames of the WebSockets."""

import json
import random
from typing import Any, Final

from tools.hostile.generator.values import (
    CONFIG_VALUES,
    CONFIGS,
    COUNTS,
    GROUPS,
    MOST_DISTINCT,
    TOPICS,
    hostile_integer,
    hostile_string,
)

Schema = dict[str, Any]

MOST_ELEMENTS = 20_000
MOST_DEPTH = 8
DEEP = "\0deep"
"""Stands for arrays in arrays: Python cannot print so many, and a decoder must not follow them."""
DEEP_TEXT: Final = "[" * 20_000 + "]" * 20_000
HUGE = "\0huge"
HUGE_TEXT: Final = "9" * 5_000
USUAL: Final[dict[str, tuple[Any, ...]]] = {
    "topic": TOPICS,
    "name": TOPICS,
    "topics": TOPICS,
    "queue": GROUPS,
    "group": GROUPS,
    "subscription": GROUPS,
    "consumer": ("consumer-1", "consumer-2"),
    "encoding": ("json", "text", "base64"),
    "offset": (0, 1, "earliest", "latest"),
    "partition": (0, 1, 2),
    "partitions": (1, 2, 3),
    "node_id": (1, 2),
    "key": ("key", None),
    "value": ("text", 7, {"a": [1, None]}),
    "wait_ms": (0, 1),
    "delay_ms": (0, 1, 1000),
    "credit": (1, 10, 100),
    "number": (1, 2, 3),
    "receipt": ("lwKkbWFp", "AAAA"),
    "type": (),
}


class JsonMaker:
    """Makes the values of one attack. `definitions`: the schemas that others refer to, by name."""

    def __init__(self, chance: random.Random, definitions: Schema, hostility: float) -> None:
        self._chance = chance
        self._definitions = definitions
        self._hostility = hostility
        self._elements_left = MOST_ELEMENTS

    def make(self, schema: Schema, name: str = "", depth: int = 0) -> Any:
        """A value of the schema, with hostile ones in some places."""
        if "$ref" in schema:
            return self.make(self._definitions[schema["$ref"].rpartition("/")[2]], name, depth)
        if self._chance.random() < self._hostility * (0.3 if depth == 0 else 1.0):
            return self._hostile()
        for choice in ("anyOf", "oneOf"):
            if choice in schema:
                return self.make(self._chance.choice(schema[choice]), name, depth)
        if "enum" in schema:
            return self._chance.choice(schema["enum"])
        if "const" in schema:
            return schema["const"]
        kind = schema.get("type")
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, name, depth)
        if USUAL.get(name) and self._chance.random() < 0.8:
            return self._chance.choice(USUAL[name])
        return self._scalar(schema, kind)

    def text(self, value: Any) -> str:
        """The value as JSON, with whatever Python cannot say itself."""
        text = json.dumps(value)
        return text.replace(json.dumps(DEEP), DEEP_TEXT).replace(json.dumps(HUGE), HUGE_TEXT)

    def _object(self, schema: Schema, depth: int) -> dict[str, Any]:
        required = schema.get("required", ())
        made = {
            name: self.make(one, name, depth + 1)
            for name, one in schema.get("properties", {}).items()
            if name in required or (depth < MOST_DEPTH and self._chance.random() < 0.5)
        }
        if "additionalProperties" in schema and isinstance(schema["additionalProperties"], dict):
            made[self._chance.choice(CONFIGS)] = self._chance.choice(CONFIG_VALUES)
        if self._chance.random() < self._hostility / 4:
            made[hostile_string(self._chance)] = self._hostile()
        return made

    def _array(self, schema: Schema, name: str, depth: int) -> list[Any]:
        if "prefixItems" in schema:
            return [self.make(one, name, depth + 1) for one in schema["prefixItems"]]
        count = self._chance.choice((1, 1, 2))
        if self._chance.random() < self._hostility:
            count = self._chance.choice(COUNTS)
        count = min(count, self._elements_left)
        self._elements_left -= count
        items = schema.get("items") or {}
        if count <= 3 or (count <= MOST_DISTINCT and self._chance.random() < 0.5):
            return [self.make(items, name, depth + 1) for _ in range(count)]
        left, self._elements_left = self._elements_left, self._elements_left // count
        element = self.make(items, name, depth + 1)  # which may have arrays itself
        self._elements_left = left - count * (left // count - self._elements_left)
        return [element] * count

    def _scalar(self, schema: Schema, kind: str | None) -> Any:
        if kind == "integer":
            least, most = schema.get("minimum", 0), schema.get("maximum", 2**63 - 1)
            return self._chance.choice((least, most, min(most, least + self._chance.randint(0, 10))))
        if kind == "number":
            return self._chance.random()
        if kind == "boolean":
            return self._chance.random() < 0.5
        if kind == "null":
            return None
        return self._chance.choice((*TOPICS, "text"))

    def _hostile(self) -> Any:
        chance = self._chance
        return chance.choice(
            (
                None,
                True,
                [],
                {},
                "",
                DEEP,
                HUGE,
                -1,
                0.5,
                1e308,
                float("nan"),
                float("inf"),
                "\ud800",
                "x" * 100_000,
                [[0, 2**62]] * 1_000,
                {"type": "ack"},
                hostile_integer(chance, 64),
                2**64,
                hostile_string(chance),
            )
        )
