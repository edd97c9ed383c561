"""Schemas from a schema registry, by the REST API that Confluent's has and others share.

    GET /schemas/ids/ID, /schemas/guids/GUID      the schema of a record, by the id that is in it
    GET /subjects/SUBJECT/versions/latest          the newest schema of a topic, for the type of a column
    GET /subjects/SUBJECT/versions/N               a schema that another one refers to

A schema never changes once it is registered, so each is asked for once in a process. The registry is another program's,
and ids come with records from anybody: answers, references and what is remembered are bounded. Only the address in the
settings is asked: redirects are not followed.
"""

import base64
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import HTTPRedirectHandler, Request, build_opener
from uuid import UUID

from penstock.errors import PenstockError

from .framing import SchemaKey, WriterSchema
from .problems import BadValue, clip

PAUSE_S: Final = 0.25
"""Before the second try; twice as long before each later one."""
MAX_ANSWER_BYTES: Final = 4 << 20
"""Registries refuse schemas of more than 1 MiB by default; JSON and base64 make them longer."""
MAX_REFERENCES: Final = 100
"""Schemas that one schema refers to, also by way of others."""
MAX_REFERENCE_CHARACTERS: Final = 16 << 20
"""All of them together."""
MAX_CACHED: Final = 1_000
MAX_CACHED_CHARACTERS: Final = 64 << 20
MAX_UNKNOWN: Final = 10_000
"""Ids that the registry does not know and that a task remembers, so that it asks for each once."""

SERIALIZED: Final = "?format=serialized"
"""A Protobuf schema as base64 of its descriptor: nothing here could parse the text of a .proto file."""


class RegistryError(PenstockError):
    """The registry does not answer as it should: no record's fault."""


class RegistryDown(RegistryError):
    """The registry does not answer, or refuses the login: it would not have another schema either."""


class UnknownSubject(RegistryError):
    """The registry has no schema of this name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RegistrySettings:
    url: str
    user_info: str | None = field(default=None, repr=False)
    """user:password."""
    login_setting: str = "schemaRegistryUserInfo"
    """The setting that has `user_info`, for the text of an error."""
    schema_type: str | None = None
    """AVRO or PROTOBUF; None: any type."""
    timeout_s: float = 10.0
    """The limit of one request."""
    tries: int = 3


class _NotFoundError(Exception):
    """Status 404."""


class _NoRedirects(HTTPRedirectHandler):
    """A login must not go to another address."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


class SchemaCache:
    """Schemas by registry and path. Several threads may use it."""

    def __init__(self) -> None:
        self._schemas: dict[tuple[RegistrySettings, str], WriterSchema] = {}

    def get(self, settings: RegistrySettings, path: str) -> WriterSchema | None:
        return self._schemas.get((settings, path))

    def put(self, settings: RegistrySettings, path: str, schema: WriterSchema) -> None:
        kept = list(self._schemas.values())
        if len(kept) >= MAX_CACHED or sum(map(characters, [schema, *kept])) > MAX_CACHED_CHARACTERS:
            self._schemas.clear()
        self._schemas[settings, path] = schema

    def clear(self) -> None:
        self._schemas.clear()


of_process: Final = SchemaCache()
"""Of all tasks that run in this process."""


class SchemaRegistry:
    def __init__(self, settings: RegistrySettings, cache: SchemaCache = of_process) -> None:
        self._settings = settings
        self._cache = cache
        self._unknown: dict[SchemaKey, str] = {}
        self._opener = build_opener(_NoRedirects)

    def schema_of(self, key: SchemaKey) -> WriterSchema:
        """The schema of a record. BadValue if the registry does not have it."""
        if key in self._unknown:
            raise BadValue(self._unknown[key])
        try:
            return self._kept(_path(key))
        except _NotFoundError:
            pass
        if len(self._unknown) >= MAX_UNKNOWN:
            self._unknown.clear()
        self._unknown[key] = f"the registry at {self._settings.url} has no schema {key}"
        raise BadValue(self._unknown[key])

    def known(self, key: SchemaKey) -> WriterSchema | None:
        """The same without asking: what the cache has."""
        return self._cache.get(self._settings, _path(key))

    def latest(self, subject: str) -> WriterSchema:
        """The newest schema of a subject, asked for each time."""
        try:
            return self._fetch(f"/subjects/{quote(subject, safe='')}/versions/latest")
        except _NotFoundError:
            raise UnknownSubject(f"the registry at {self._settings.url} has no subject {subject!r}") from None

    def _kept(self, path: str) -> WriterSchema:
        found = self._cache.get(self._settings, path)
        if found is None:
            found = self._fetch(path)
            self._cache.put(self._settings, path, found)
        return found

    def _fetch(self, path: str) -> WriterSchema:
        is_protobuf = self._settings.schema_type == "PROTOBUF"
        answer = self._ask(path, serialized=is_protobuf)
        found = self._checked_type(answer, path)
        if found == "PROTOBUF" and not is_protobuf:
            answer = self._ask(path, serialized=True)
        references: dict[str, str] = {}
        self._collect(answer, references, serialized=found == "PROTOBUF")
        return WriterSchema(schema_type=found, text=_text(answer, path), references=references)

    def _collect(self, answer: Mapping[str, Any], into: dict[str, str], *, serialized: bool) -> None:
        """The schemas that this one refers to, by name; those that they refer to come first."""
        for name, subject, version in _references(answer):
            if name in into:
                continue
            if len(into) >= MAX_REFERENCES or sum(map(len, into.values())) > MAX_REFERENCE_CHARACTERS:
                raise RegistryError(
                    f"a schema refers to more than {MAX_REFERENCES} others, or to more than "
                    f"{MAX_REFERENCE_CHARACTERS} characters of them"
                )
            into[name] = ""
            path = f"/subjects/{quote(subject, safe='')}/versions/{version}"
            try:
                found = self._ask(path, serialized=serialized)
            except _NotFoundError:
                raise RegistryError(
                    f"the registry has no version {version} of {subject!r}, to which a schema refers"
                ) from None
            self._collect(found, into, serialized=serialized)
            del into[name]
            into[name] = _text(found, path)

    def _checked_type(self, answer: Mapping[str, Any], path: str) -> str:
        found = str(answer.get("schemaType") or "AVRO").upper()
        if self._settings.schema_type not in (None, found):
            raise BadValue(
                f"{path} of the registry is a schema of type {clip(found, 20)}, not {self._settings.schema_type}"
            )
        return found

    def _ask(self, path: str, *, serialized: bool) -> dict[str, Any]:
        url = self._settings.url.rstrip("/") + path + (SERIALIZED if serialized else "")
        for attempt in range(1, self._settings.tries + 1):
            try:
                return _parsed(self._get(url), url)
            except (OSError, HTTPException) as problem:
                if attempt == self._settings.tries:
                    raise RegistryDown(f"{url} does not answer: {clip(str(problem))}") from None
                time.sleep(PAUSE_S * 2 ** (attempt - 1))
        raise AssertionError("the last try returns or raises")

    def _get(self, url: str) -> bytes:
        request = Request(url, headers={"accept": "application/json", **self._login()})
        try:
            with self._opener.open(request, timeout=self._settings.timeout_s) as answer:
                found: bytes = answer.read(MAX_ANSWER_BYTES + 1)
        except HTTPError as refused:
            with refused:
                if refused.code == 404:
                    raise _NotFoundError from None
                if refused.code in (401, 403):
                    hint = f"check {self._settings.login_setting}"
                    raise RegistryDown(f"{url} answers with status {refused.code}: {hint}") from None
                if refused.code < 500:
                    raise RegistryError(f"{url} answers with status {refused.code}") from None
                raise OSError(f"status {refused.code}") from None
        if len(found) > MAX_ANSWER_BYTES:
            raise RegistryError(f"{url} answers with more than {MAX_ANSWER_BYTES} bytes")
        return found

    def _login(self) -> dict[str, str]:
        if self._settings.user_info is None:
            return {}
        return {"authorization": "Basic " + base64.b64encode(self._settings.user_info.encode()).decode()}


def _parsed(body: bytes, url: str) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("schema"), str):
        raise RegistryError(f"{url} answers with something else than a schema: is this a schema registry?")
    return found


def _text(answer: Mapping[str, Any], path: str) -> str:
    text = answer["schema"]
    assert isinstance(text, str), path
    return text


def _references(answer: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """Name, subject and version of the schemas that this one refers to directly."""
    try:
        rows = answer.get("references") or ()
        return [(str(row["name"]), str(row["subject"]), int(row["version"])) for row in rows]
    except (LookupError, TypeError, ValueError) as problem:
        raise RegistryError(
            f"the registry has a schema with references that cannot be read: {clip(repr(problem))}"
        ) from None


def characters(schema: WriterSchema) -> int:
    return len(schema.text) + sum(map(len, schema.references.values()))


def _path(key: SchemaKey) -> str:
    return f"/schemas/{'guids' if isinstance(key, UUID) else 'ids'}/{key}"
