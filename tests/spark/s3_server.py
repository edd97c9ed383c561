"""An S3 server as a process: moto's, which keeps objects in memory. `python -m tests.spark.s3_server` prints its port.

It takes one request at a time, so that no other put comes between its look for an object and its write: conditional
puts are then atomic. lake/test_object_storage.py checks it.
"""

import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from uuid import uuid4

SIGNED = (
    "AWS4-HMAC-SHA256 Credential=tests/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
)
"""moto reads no more of it than the service and the region."""


class S3Server:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.s3_server"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def variables(self) -> dict[str, str]:
        """For the environment of its clients."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }

    def make_bucket(self) -> str:
        name = f"bucket-{uuid4().hex}"
        assert self.put(f"/{name}") == 200
        return name

    def put(self, path: str, body: bytes = b"", **headers: str) -> int:
        """The status of the answer."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request("PUT", path, body, {"Authorization": SIGNED, **named})
            return connection.getresponse().status
        finally:
            connection.close()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def main() -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app))
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
