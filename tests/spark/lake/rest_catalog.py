"""A REST catalog for tests, as far as an archive uses one: pyiceberg's own models over its SQLite catalog."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableRequest, StagedTable, Table

STATUS: dict[type[Exception], int] = {
    NoSuchTableError: 404,
    CommitFailedException: 409,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
}


@contextmanager
def rest_catalog(folder: Path) -> Iterator[str]:
    """Its URI."""
    catalog = SqlCatalog("server", uri=f"sqlite:///{folder}/served.db")

    class Handler(_Handler):
        served = catalog

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        catalog.close()


class _Handler(BaseHTTPRequestHandler):
    served: SqlCatalog

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        try:
            status, found = 200, self._handled(self.path.partition("?")[0].strip("/").split("/")[1:])
        except tuple(STATUS) as problem:
            told = {"message": str(problem), "type": type(problem).__name__, "code": STATUS[type(problem)]}
            status, found = STATUS[type(problem)], {"error": told}
        body = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _handled(self, path: list[str]) -> dict[str, Any]:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        match self.command, path:
            case "GET", ["config"]:
                return {"defaults": {}, "overrides": {}}
            case "POST", ["namespaces"]:
                [namespace] = json.loads(body)["namespace"]
                self.served.create_namespace(namespace)
                return {"namespace": [namespace], "properties": {}}
            case "POST", ["namespaces", namespace, "tables"]:
                wanted = CreateTableRequest.model_validate_json(body)
                assert wanted.stage_create
                made = self.served._create_staged_table(
                    (namespace, wanted.name),
                    wanted.table_schema,
                    wanted.location,
                    properties=wanted.properties,
                )
                return _told(made)
            case "GET", ["namespaces", namespace, "tables", name]:
                return _told(self.served.load_table((namespace, name)))
            case "POST", ["namespaces", namespace, "tables", name]:
                return self._committed((namespace, name), CommitTableRequest.model_validate_json(body))
        raise AssertionError(f"{self.command} {self.path}")

    def _committed(self, identifier: tuple[str, str], wanted: CommitTableRequest) -> dict[str, Any]:
        table = type("Named", (), {"name": lambda self: identifier})()
        done = self.served.commit_table(table, wanted.requirements, wanted.updates)
        return dict(json.loads(done.model_dump_json()))

    def log_message(self, *arguments: object) -> None:
        pass


def _told(table: Table | StagedTable) -> dict[str, Any]:
    return {
        "metadata-location": table.metadata_location,
        "metadata": json.loads(table.metadata.model_dump_json()),
    }
