"""How commands reach a cluster: over the HTTP port of any of its nodes."""

import json
import os
import re
import shlex
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.parse import unquote

import click
import msgspec
from click.core import ParameterSource

from penstock.cli.problem import Problem
from penstock.config import Address
from penstock.config.address import UNREACHABLE_HOSTS
from penstock.errors import ConfigError
from penstock.node.metadata.controller import RebalanceStep
from penstock.node.status.cluster_status import ClusterStatus

DEFAULT_HTTP = "127.0.0.1:8080"
HTTP_VARIABLE = "PENSTOCK_HTTP_URL"
SERVE_VARIABLE = "PENSTOCK_HTTP"
"""Where `serve` listens, which may be 0.0.0.0:8080 or none. Commands heed it only where a URL says that they are meant:
once it was their name as well."""
TIMEOUT_SECONDS = 20.0
"""Longer than a node waits for a controller to be elected: its reason is better than ours."""

API_HINTS = {
    "unknown_queue": "`penstock queues list` shows what there is; `penstock queues create {queue}` makes one",
    "queue_exists": "`penstock queues describe {queue}` shows it",
    "unknown_topic_or_partition": "`penstock topics list` shows what there is",
    "unknown_dead_letter": "`penstock queues dead-letters list {queue}` shows what there is",
    "non_empty_group": "`penstock queues describe {queue}` shows who is at work",
}
"""By the codes of `web.api.problems`."""

OPTIONS = {
    "queue": "NAME",
    "topic": "--topic",
    "topics": "--topic",
    "partition": "--partition",
    "partitions": "--partitions",
    "offset": "--offset",
    "replication_factor": "--replication-factor",
    "order": "--order",
    "exclusive": "--exclusive",
    "lease_ms": "--lease",
    "delivery_limit": "--limit",
    "dead_letters": "--no-dead-letters",
    "dead_letter_topic": "--dead-letters",
    "retry_backoff_ms": "--retry-delay",
    "retry_backoff_max_ms": "--retry-delay-max",
    "max_records": "--max",
}
"""What the fields of the web API are called on the command line."""

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Nodes are not on the other side of a web proxy, whatever the environment says."""


class NobodyThere(Problem):
    """No node answers."""

    def __init__(self, url: str, reason: object) -> None:
        super().__init__(
            f"nobody answers at {url}: {reason}",
            "is a node running there? `penstock serve` starts one, `penstock cluster up` a local cluster; --http or "
            "PENSTOCK_HTTP_URL names another node's HTTP address",
        )


class ClusterApi:
    """Asks one node, and when that one has gone, the others that it told of."""

    def __init__(self, url: str) -> None:
        self._urls = [url]

    @property
    def url(self) -> str:
        return self._urls[0]

    def picture(self, *, avoid: int | None = None) -> ClusterStatus:
        """The cluster as the node sees it. `avoid` is a node that is about to leave and may not know it."""
        picture = self._ask("GET", "/v1/cluster", ClusterStatus)
        others = [
            f"http://{node.http}"
            for node in picture.nodes
            if node.http and node.state == "alive" and node.node_id != avoid and _is_reachable(node.http)
        ]
        if picture.node_id == avoid and others:
            self._urls = others
            return self.picture()
        self._urls = [self.url, *(url for url in others if url != self.url)]
        return picture

    def rebalance(self, *, dry_run: bool) -> RebalanceStep:
        return self._ask("POST", "/v1/cluster/rebalance", RebalanceStep, {"dry_run": dry_run})

    def decommission(self, node_id: int, *, on: bool) -> None:
        method = "POST" if on else "DELETE"
        self._ask(method, f"/v1/cluster/nodes/{node_id}/decommission", dict[str, Any], {})

    def _ask(self, method: str, path: str, wanted: type[T], body: object = None) -> T:
        gone: NobodyThere | None = None
        for url in list(self._urls):
            try:
                found = ask_node(url, method, path, wanted, body)
            except NobodyThere as nobody:
                gone = gone or nobody
                continue
            self._urls = [url, *(other for other in self._urls if other != url)]
            return found
        assert gone is not None
        raise gone


def ask_node(url: str, method: str, path: str, wanted: type[T], body: object) -> T:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        url + path, data=data, method=method, headers={"Content-Type": "application/json"}
    )
    try:
        with _direct.open(request, timeout=TIMEOUT_SECONDS) as answer:
            return msgspec.json.decode(answer.read() or b"null", type=wanted)
    except urllib.error.HTTPError as refused:
        raise _refusal(url, refused, _queue_of(path, body)) from None
    except urllib.error.URLError as failure:
        raise NobodyThere(url, _reason(failure.reason)) from None
    except OSError as failure:  # it went away in the midst of its answer
        raise NobodyThere(url, _reason(failure)) from None
    except (HTTPException, ValueError):  # some other protocol
        raise _stranger(url) from None


def _reason(failure: object) -> object:
    return getattr(failure, "strerror", None) or failure


def _queue_of(path: str, body: object) -> str:
    """Of which queue was asked, as one writes it in a shell."""
    parts = path.partition("?")[0].split("/")
    name = unquote(parts[3]) if parts[2:3] == ["queues"] and len(parts) > 3 else ""
    if isinstance(body, dict):
        name = name or str(body.get("queue", ""))
    return shlex.quote(name) if name else "NAME"


def _refusal(url: str, refused: urllib.error.HTTPError, queue: str) -> Problem:
    try:
        said = json.loads(refused.read())
        if isinstance(said["error"], dict):  # as the web API says it
            hint = API_HINTS.get(said["error"]["code"], "").replace("{queue}", queue)
            return Problem(_in_options(said["error"]), hint)
        return Problem(said["error"], said["hint"])
    except (OSError, ValueError, TypeError, KeyError):
        return _stranger(url)


def _in_options(error: dict[str, Any]) -> str:
    """What the web API says, in the words of the command line."""
    message = re.sub(r"`(\w+)`", lambda found: OPTIONS.get(found[1], found[0]), error["message"])
    field = error.get("field")
    if error["code"] != "invalid_field" or not field or field == "configs":
        return message
    unit = " (milliseconds)" if field.endswith("_ms") else ""
    return f"{OPTIONS.get(field, field)}: {message}{unit}"


def _stranger(url: str) -> Problem:
    return Problem(
        f"{url} answers, but not as a Penstock node of this version",
        "--http wants the address that `penstock serve` prints after `http`",
    )


def _is_reachable(address: str) -> bool:
    return Address.parse("http", address).host not in UNREACHABLE_HOSTS


def http_url(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    """HOST:PORT, as `serve` takes it, or a URL."""
    former = os.environ.get(SERVE_VARIABLE, "")
    is_default = ctx.get_parameter_source(parameter.name or "") is ParameterSource.DEFAULT
    if is_default and former.startswith("http://"):
        value = former
    scheme, separator, rest = value.rpartition("://")
    address = rest.rstrip("/")
    try:
        Address.parse("--http", address)
    except ConfigError:
        raise click.BadParameter(f"{value!r}: expected HOST:PORT or http://HOST:PORT") from None
    if separator and scheme not in ("http", "https"):
        raise click.BadParameter(f"{value!r}: expected HOST:PORT or http://HOST:PORT")
    return f"{scheme or 'http'}://{address}"


def reaches_cluster(command: Command) -> Command:
    """Gives a command --http, and hands it over as `api`."""

    def with_api(http: str, **rest: Any) -> Any:
        return command(api=ClusterApi(http), **rest)

    with_api.__doc__ = command.__doc__
    with_api.__name__ = command.__name__
    with_api.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    option = click.option(
        "--http", metavar="HOST:PORT", envvar=HTTP_VARIABLE, default=DEFAULT_HTTP, callback=http_url,
        show_default=True, show_envvar=True, help="The HTTP address of any of the cluster's nodes.",
    )  # fmt: skip
    return option(with_api)  # type: ignore[return-value]
