"""Schemas as users write them: DDL ("id BIGINT NOT NULL, tags ARRAY<STRING>") and Spark's JSON.

Spark parses DDL in the JVM, but a data source is planned in a Python process that has none, so the grammar is here:

    schema = "struct" "<" fields ">" | fields
    fields = field ("," field)*
    field  = name [":"] type ["NOT" "NULL"] ["COMMENT" string]
    type   = word ["(" number ("," number)* ")"] | "array<" type ">" | "map<" type "," type ">" | "struct<" fields ">"
"""

import json
import re
from collections.abc import Callable
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import types

from .interfaces import PayloadError, shown

_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)*`)|('(?:[^'\\]|\\.)*')|([^\s<>(),:`']+)|([<>(),:]))")
# Deep enough for any table; the parser recurses.
MAX_DEPTH = 50

_WORDS: dict[str, Callable[[], types.DataType]] = {
    "boolean": types.BooleanType,
    "tinyint": types.ByteType,
    "byte": types.ByteType,
    "smallint": types.ShortType,
    "short": types.ShortType,
    "int": types.IntegerType,
    "integer": types.IntegerType,
    "bigint": types.LongType,
    "long": types.LongType,
    "float": types.FloatType,
    "real": types.FloatType,
    "double": types.DoubleType,
    "string": types.StringType,
    "binary": types.BinaryType,
    "date": types.DateType,
    "timestamp": types.TimestampType,
    "timestamp_ltz": types.TimestampType,
    "timestamp_ntz": types.TimestampNTZType,
}
_DECIMALS = ("decimal", "dec", "numeric")
# Spark reads these as strings too.
_TEXTS = ("char", "character", "varchar")


def parse_schema(text: str) -> types.StructType:
    """DDL or Spark's JSON to a schema; PayloadError says where the text goes wrong."""
    if text.lstrip().startswith("{"):
        return _from_json(text)
    return _Parser(text).schema()


def _from_json(text: str) -> types.StructType:
    try:
        found: Any = json.loads(text)
        return types.StructType.fromJson(found)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, PySparkException) as error:
        raise PayloadError(
            f"valueSchema={shown(text)!r}: expected a schema in DDL or in Spark's JSON "
            f'({{"type": "struct", "fields": [...]}}): {shown(repr(error))}'
        ) from None


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split(text)
        self._at = 0
        self._depth = 0

    def _split(self, text: str) -> list[str]:
        tokens, at = [], 0
        end = len(text.rstrip())
        while at < end:
            found = _TOKEN.match(text, at)
            if not found:
                raise self._error("a name or a type", text[at:])
            tokens.append(found.group().strip())
            at = found.end()
        return tokens

    def schema(self) -> types.StructType:
        # "struct" may also be the name of the first field.
        if self._peek().lower() == "struct" and self._tokens[1:2] == ["<"]:
            self._take()
            found = self._struct()
        else:
            found = self._fields()
        if self._peek():
            raise self._error("the end of the schema or a comma", self._peek())
        return found

    def _fields(self) -> types.StructType:
        fields = [self._field()]
        while self._peek() == ",":
            self._take()
            fields.append(self._field())
        return types.StructType(fields)

    def _field(self) -> types.StructField:
        name = self._name()
        if self._peek() == ":":
            self._take()
        kind, nullable = self._type(), True
        if self._peek().lower() == "not":
            self._take()
            self._expect("null")
            nullable = False
        metadata = {}
        if self._peek().lower() == "comment":
            self._take()
            metadata["comment"] = self._string()
        return types.StructField(name, kind, nullable, metadata)

    def _name(self) -> str:
        token = self._take()
        if token.startswith("`") and len(token) > 2:
            return token[1:-1].replace("``", "`")
        if not token or token in "<>(),:" or token[0] in "'`":
            raise self._error("a field name", token)
        return token

    def _string(self) -> str:
        token = self._take()
        if not token.startswith("'"):
            raise self._error("a quoted comment", token)
        return re.sub(r"\\(.)", r"\1", token[1:-1])

    def _type(self) -> types.DataType:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise PayloadError(f"valueSchema is nested more than {MAX_DEPTH} levels deep")
        kind = self._one_type()
        self._depth -= 1
        return kind

    def _one_type(self) -> types.DataType:
        token = self._take()
        match token.lower():
            case "array":
                self._expect("<")
                kind: types.DataType = types.ArrayType(self._type())
                self._expect(">")
                return kind
            case "map":
                return self._map()
            case "struct":
                return self._struct()
            case word if word in _DECIMALS:
                return self._decimal()
            case word if word in _TEXTS:
                self._numbers()
                return types.StringType()
            case word if word in _WORDS:
                return _WORDS[word]()
        raise self._error(f"a type ({', '.join(_WORDS)}, decimal(p,s), array<>, map<> or struct<>)", token)

    def _map(self) -> types.MapType:
        self._expect("<")
        key = self._type()
        self._expect(",")
        value = self._type()
        self._expect(">")
        return types.MapType(key, value)

    def _struct(self) -> types.StructType:
        self._expect("<")
        found = self._fields() if self._peek() != ">" else types.StructType([])
        self._expect(">")
        return found

    def _decimal(self) -> types.DecimalType:
        numbers = self._numbers()
        precision, scale = (*numbers, 0)[:2] if numbers else (10, 0)
        if len(numbers) > 2 or not 1 <= precision <= 38 or not 0 <= scale <= precision:
            raise self._error("decimal(p,s) with p from 1 to 38 and s from 0 to p", str(tuple(numbers)))
        return types.DecimalType(precision, scale)

    def _numbers(self) -> list[int]:
        if self._peek() != "(":
            return []
        numbers = []
        while self._take() != ")":
            token = self._take()
            if not token.isdecimal() or self._peek() not in (",", ")"):
                raise self._error("numbers in brackets", token)
            numbers.append(int(token[:9]))
        return numbers

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _expect(self, wanted: str) -> None:
        token = self._take()
        if token.lower() != wanted:
            raise self._error(repr(wanted), token)

    def _error(self, expected: str, found: str) -> PayloadError:
        where = f"found {shown(found)!r}" if found else "the text ends"
        return PayloadError(f"valueSchema={shown(self._text)!r}: expected {expected}, {where}")
