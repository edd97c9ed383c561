"""How S3 is reached: by the variables that all of AWS's tools know, for pyarrow (data files) and delta-rs (commits).

The driver's variables go to the executors with the tasks. Where the driver has no keys in its environment, each
process finds its own, as AWS's tools do: profile, role of the machine, web identity.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from penstock.errors import ConfigError

REQUEST_TIMEOUT_S: Final = 60
"""A request of pyarrow's may take 3 s by default: too short for a part of 10 MB on a slow line."""
CONNECT_TIMEOUT_S: Final = 10
MOST_ATTEMPTS: Final = 5
"""S3 answers "slow down" under load; writers that start together need a few."""
LOCAL_REGION: Final = "us-east-1"
"""Servers other than AWS mostly have none, and this is what their clients then sign with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class S3Settings:
    endpoint: str | None = None
    """Another server than AWS: http://127.0.0.1:9000."""
    region: str | None = None
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    virtual_hosts: bool = False
    """Whether the bucket is part of the server's name. AWS has both."""

    @classmethod
    def from_environment(cls, variables: Mapping[str, str]) -> "S3Settings":
        def first(*names: str) -> str | None:
            return next((variables[name] for name in names if variables.get(name)), None)

        endpoint = first("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        if endpoint is not None and not endpoint.startswith(("http://", "https://")):
            raise ConfigError("AWS_ENDPOINT_URL", endpoint, "a URL, such as http://127.0.0.1:9000")
        return cls(
            endpoint=endpoint,
            region=first("AWS_REGION", "AWS_DEFAULT_REGION") or (LOCAL_REGION if endpoint else None),
            access_key=first("AWS_ACCESS_KEY_ID"),
            secret_key=first("AWS_SECRET_ACCESS_KEY"),
            session_token=first("AWS_SESSION_TOKEN"),
            virtual_hosts=(first("AWS_VIRTUAL_HOSTED_STYLE_REQUEST") or "").lower() == "true",
        )

    def file_system(self) -> Any:
        """pyarrow's. One for each process, as it has a pool of connections."""
        return _file_system(self)

    def delta_options(self) -> dict[str, str]:
        """A commit is a put of the next file of the log that fails if the file is there (`If-None-Match: *`)."""
        found = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": self.region,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_SESSION_TOKEN": self.session_token,
            "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true" if self.virtual_hosts else None,
            "AWS_ALLOW_HTTP": "true" if self.endpoint and self.endpoint.startswith("http://") else None,
            "aws_conditional_put": "etag",
            "timeout": f"{REQUEST_TIMEOUT_S}s",
            "connect_timeout": f"{CONNECT_TIMEOUT_S}s",
        }
        return {name: value for name, value in found.items() if value is not None}

    def iceberg_options(self) -> dict[str, str]:
        found = {
            "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
            "s3.endpoint": self.endpoint,
            "s3.region": self.region,
            "s3.access-key-id": self.access_key,
            "s3.secret-access-key": self.secret_key,
            "s3.session-token": self.session_token,
            "s3.force-virtual-addressing": "true" if self.virtual_hosts else "false",
            "s3.request-timeout": str(REQUEST_TIMEOUT_S),
            "s3.connect-timeout": str(CONNECT_TIMEOUT_S),
        }
        return {name: value for name, value in found.items() if value is not None}


@lru_cache(maxsize=8)
def _file_system(settings: S3Settings) -> Any:
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

    return S3FileSystem(
        access_key=settings.access_key,
        secret_key=settings.secret_key,
        session_token=settings.session_token,
        region=settings.region,
        endpoint_override=settings.endpoint,
        force_virtual_addressing=settings.virtual_hosts,
        request_timeout=REQUEST_TIMEOUT_S,
        connect_timeout=CONNECT_TIMEOUT_S,
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=MOST_ATTEMPTS),
        allow_delayed_open=True,  # a small file is one request
    )
