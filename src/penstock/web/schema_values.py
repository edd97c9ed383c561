"""Keys and values by the schemas of the registry that the operator has set (`schema_registry.url`), for /v1/browse.

Records come from anybody, and the registry is another system. So:

    who is asked            the operator's address alone; records name ids, never addresses
    a scan                  decodes in its thread, by the schemas that are known. It waits WAIT_SECONDS at most for
                            others, and goes on without them
    a registry that fails   is left alone for REST_SECONDS: scans do not wait for it meanwhile
    schemas that it lacks   are remembered for REST_SECONDS, at most MAX_UNKNOWN of them; with more, it is asked no more
    requests                MAX_LOADS at once, each in a thread that may hang: the process ends without it
"""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import NamedTuple

from penstock.config import SchemaRegistrySettings
from penstock.errors import ConfigError
from penstock.schema_registry.decoder import Decoded, SchemaDecoder
from penstock.schema_registry.framing import SchemaKey, WriterSchema, named_schema
from penstock.schema_registry.problems import BadValue
from penstock.schema_registry.registry import (
    RegistryDown,
    RegistryError,
    RegistrySettings,
    SchemaCache,
    SchemaRegistry,
)

WAIT_SECONDS = 2.0
REST_SECONDS = 30.0
MAX_LOADS = 8
MAX_UNKNOWN = 200
"""A topic whose values begin with zero by chance has a new id in every message."""

Clock = Callable[[], float]


class _Unknown(NamedTuple):
    why: str
    until: float


_NOT_RESTING = _Unknown("", 0.0)


class RegistryValues:
    """`decode` may run in any thread, all else in the event loop."""

    def __init__(self, settings: SchemaRegistrySettings, clock: Clock | None = None) -> None:
        self._settings = RegistrySettings(
            url=settings.url,
            user_info=_user_info(settings.user_info_file),
            login_setting="schema_registry.user_info_file",
            timeout_s=WAIT_SECONDS,
            tries=1,
        )
        self._clock = clock or asyncio.get_running_loop().time
        self._cache = SchemaCache()
        self._registry = SchemaRegistry(self._settings, self._cache)
        self._unknown: dict[SchemaKey, _Unknown] = {}
        self._loads: dict[SchemaKey, asyncio.Future[None]] = {}
        self._rest = _NOT_RESTING
        """Why and until when the registry is left alone."""
        self._decoder = SchemaDecoder(self._lookup)

    def decode(self, data: bytes, header: bytes | None, missing: set[SchemaKey]) -> Decoded | None:
        """None if the bytes name no schema. `missing` gets the schemas that `load` should ask for."""
        key = named_schema(data, header)
        if key is None:
            return None
        if self._registry.known(key) is None and not self._is_unknown(key):
            missing.add(key)
        return self._decoder.decode(data, header)

    def _lookup(self, key: SchemaKey) -> WriterSchema:
        found = self._registry.known(key)
        if found is None:
            unknown = self._unknown.get(key, self._rest)
            raise BadValue(
                unknown.why or f"the registry at {self._settings.url} was not asked for schema {key}"
            )
        return found

    async def load(self, keys: Collection[SchemaKey]) -> bool:
        """Asks for schemas, and waits for them for a short time. Whether it asked: more is known then, or why not."""
        self._forget()
        deadline = self._clock() + WAIT_SECONDS
        wanted, has_asked = list(keys), False
        for at in range(0, len(wanted), MAX_LOADS):
            if self._clock() < self._rest.until or len(self._unknown) >= MAX_UNKNOWN:
                break
            loads = [load for key in wanted[at : at + MAX_LOADS] if (load := self._load(key)) is not None]
            await self._answers(loads or list(self._loads.values()), deadline)
            has_asked = True
        return has_asked

    def _load(self, key: SchemaKey) -> asyncio.Future[None] | None:
        """None if too many requests are under way."""
        return self._loads.get(key) or (self._begin(key) if len(self._loads) < MAX_LOADS else None)

    async def _answers(self, loads: Collection[asyncio.Future[None]], deadline: float) -> None:
        _, late = await asyncio.wait(loads, timeout=max(0.0, deadline - self._clock()))
        if late:
            self._let_rest(f"the registry at {self._settings.url} does not answer within {WAIT_SECONDS:g} s")

    def _is_unknown(self, key: SchemaKey) -> bool:
        """Schemas that were registered since are found after a while."""
        found = self._unknown.get(key)
        return found is not None and self._clock() < found.until

    def _forget(self) -> None:
        self._unknown = {key: one for key, one in self._unknown.items() if self._clock() < one.until}

    def _let_rest(self, why: str) -> None:
        self._rest = _Unknown(why, self._clock() + REST_SECONDS)

    def _begin(self, key: SchemaKey) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        load = self._loads[key] = loop.create_future()

        def ask() -> None:
            found = self._ask(key)
            with suppress(RuntimeError):  # the node has stopped meanwhile
                loop.call_soon_threadsafe(self._answered, key, found)

        Thread(target=ask, name="penstock-schema-registry", daemon=True).start()
        return load

    def _ask(self, key: SchemaKey) -> WriterSchema | Exception:
        try:
            return SchemaRegistry(self._settings, self._cache).schema_of(key)
        except (BadValue, RegistryError) as problem:
            return problem

    def _answered(self, key: SchemaKey, found: WriterSchema | Exception) -> None:
        match found:
            case WriterSchema():  # which the cache has
                self._rest = _NOT_RESTING
            case RegistryDown():
                self._let_rest(str(found))
            case _:
                self._unknown[key] = _Unknown(str(found), self._clock() + REST_SECONDS)
        self._loads.pop(key).set_result(None)


def _user_info(file: str) -> str | None:
    if not file:
        return None
    try:
        return Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as problem:
        expected = f"a file with USER:PASSWORD: {problem}"
        raise ConfigError("schema_registry.user_info_file", file, expected) from None
