"""A schema registry: the requests of Confluent's REST API that serializers and readers use, on a free port."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import UUID, uuid5

NAMESPACE = UUID(int=7)


class Registry:
    """Keeps the schemas that are registered, and the requests that came."""

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.asked: list[str] = []
        self.user_info: str | None = None
        self.answers: dict[str, tuple[int, bytes]] = {}
        """Instead of the right ones, by path."""
        self.url = ""
        self._lock = threading.Lock()

    def register(self, subject: str, schema: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            given = {name: value for name, value in schema.items() if value}
            if given not in self.schemas:
                self.schemas.append(given)
            number = self.schemas.index(given) + 1
            versions = self.subjects.setdefault(subject, [])
            if number not in versions:
                versions.append(number)
            return self.version(subject, versions.index(number) + 1)

    def version(self, subject: str, version: int) -> dict[str, Any]:
        number = self.subjects[subject][version - 1]
        return {"subject": subject, "version": version, "id": number, **self.schema(number)}

    def schema(self, number: int) -> dict[str, Any]:
        if number < 1:
            raise IndexError
        return {"guid": str(uuid5(NAMESPACE, str(number))), **self.schemas[number - 1]}

    def answer(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        match method, [unquote(part) for part in path.strip("/").split("/")]:
            case "POST", ["subjects", subject, "versions"]:
                return self.register(subject, body)
            case "POST", ["subjects", subject]:
                return self.register(subject, body)
            case "GET", ["subjects", subject, "versions", "latest"]:
                return self.version(subject, len(self.subjects[subject]))
            case "GET", ["subjects", subject, "versions", number]:
                return self.version(subject, int(number))
            case "GET", ["schemas", "ids", number]:
                return self.schema(int(number))
            case "GET", ["schemas", "guids", guid]:
                guids = [str(uuid5(NAMESPACE, str(at + 1))) for at in range(len(self.schemas))]
                return self.schema(guids.index(guid) + 1)
        raise KeyError(path)


class _Handler(BaseHTTPRequestHandler):
    registry: Registry

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def _serve(self, method: str) -> None:
        registry, path = self.registry, urlsplit(self.path).path
        body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
        registry.asked.append(f"{method} {self.path}")
        if registry.user_info is not None:
            expected = "Basic " + base64.b64encode(registry.user_info.encode()).decode()
            if self.headers.get("authorization") != expected:
                return self._send(401, b'{"error_code": 401, "message": "no"}')
        if path in registry.answers:
            return self._send(*registry.answers[path])
        try:
            found = registry.answer(method, path, body)
        except (LookupError, ValueError):
            return self._send(404, b'{"error_code": 40403, "message": "not found"}')
        return self._send(200, json.dumps(found).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("location", body.decode())
        self.send_header("content-type", "application/vnd.schemaregistry.v1+json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def running() -> Iterator[Registry]:
    registry = Registry()
    handler = type("Handler", (_Handler,), {"registry": registry})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    registry.url = f"http://127.0.0.1:{server.server_port}"
    yield registry
    server.shutdown()
    thread.join()
    server.server_close()
