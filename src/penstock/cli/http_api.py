"""How commands reach the HTTP API: over any node of the cluster.

The Kafka address is enough: every broker tells its HTTP address in its config `penstock.http.url`. `--http` (or
PENSTOCK_HTTP_URL) names the HTTP address itself, for nodes whose Kafka port cannot be reached or does not answer yet.

Addresses, login and TLS come from `penstock.client`. Its `HttpApi` is for programs: a request that may be repeated goes
to another node after a server's error (5xx), too, and errors name arguments of Python. A command shows such an error
with advice that names commands and options, goes to another node only if no answer came, and stays with the node that
has answered.
"""

import json
import re
import shlex
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlencode

import click
import msgspec
from click.core import ParameterSource

from penstock.cli import login, profiles
from penstock.cli.common_options import Command, hand_over
from penstock.cli.connection import CONNECTION_OPTIONS, Connection, connect_to
from penstock.cli.kafka_problems import NOT_ALLOWED
from penstock.cli.problem import Problem
from penstock.client.errors import ClientError, Denied
from penstock.client.http_discovery import http_urls
from penstock.config import Address
from penstock.errors import ConfigError

HTTP_VARIABLE = "PENSTOCK_HTTP_URL"
"""Not PENSTOCK_HTTP: that is the address where `serve` listens, which may be 0.0.0.0:8080 or none."""
TIMEOUT_SECONDS = 20.0
"""Longer than a node waits for a controller to be elected: its reason is better than ours."""

HINTS = {
    "unknown_queue": "`penstock queues list` shows what there is; `penstock queues create {queue}` makes one",
    "queue_exists": "`penstock queues describe {queue}` shows it",
    "unknown_topic_or_partition": "`penstock topics list` shows what there is",
    "unknown_dead_letter": "`penstock queues dead-letters list {queue}` shows what there is",
    "subscriptions/non_empty_group": "--force closes the connection of its subscriber",
    "unknown_subscription": "`penstock subscriptions list` shows what there is",
    "unknown_clique": "`penstock clique list` shows what there is",
    "non_empty_group": "`penstock queues describe {queue}` shows its consumers",
    "unknown_node": "`penstock cluster status` shows the nodes",
    "not_controller": "`penstock cluster status` shows which nodes are missing",
    "login_required": "--user NAME logs in, with --password-file, PENSTOCK_PASSWORD or a question for the password",
    "login_failed": "check the name and the password; `penstock users passwd` sets another",
    "cluster_authorization_failed": NOT_ALLOWED,
    "topic_authorization_failed": NOT_ALLOWED,
    "group_authorization_failed": NOT_ALLOWED,
    "users/resource_not_found": "`penstock users list` shows what there is; `penstock users create` makes one",
    "users/duplicate_resource": "`penstock users passwd` sets another password",
    "roles/resource_not_found": "`penstock roles list` shows what there is",
    "roles/policy_violation": "`penstock roles grants` shows who has it",
    "quotas/resource_not_found": "`penstock quotas list` shows what there is",
    "grants/resource_not_found": "`penstock roles grants` shows who has which role",
    "security_disabled": "start the nodes with `penstock serve --require-login`",
    "unknown_host": "use the address of the node, or add the name to its setting http_hosts",
    "not_ready": "the node's log says what it waits for; `--http` names another node",
}
"""Advice for errors, by the codes of `web.api.problems`."""

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
"""The command line's names for the fields of the HTTP API."""

T = TypeVar("T")
Facts = dict[str, Any]


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Nodes never redirect: a redirect would carry the password to another host."""

    def redirect_request(self, *arguments: Any) -> None:
        return None


def opener(kafka: Mapping[str, str]) -> urllib.request.OpenerDirector:
    """Sends requests, with TLS as these settings of librdkafka want it. Nodes are not behind a web proxy, whatever the
    environment says."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({}), _NoRedirects()]
    if login.is_encrypted(kafka):
        handlers.append(urllib.request.HTTPSHandler(context=login.tls_context(kafka)))
    return urllib.request.build_opener(*handlers)


class NoAnswer(Problem):
    """No node answers there. `sent`: a node may have received the request."""

    def __init__(self, url: str, failure: object, *, sent: bool) -> None:
        reason = getattr(failure, "strerror", None) or failure
        super().__init__(
            f"no node answers at {url}: {reason}",
            "is a node running there? `penstock serve` starts one, `penstock cluster up` a local cluster; --bootstrap "
            f"or PENSTOCK_BOOTSTRAP names another one, --http or {HTTP_VARIABLE} its HTTP address",
        )
        self.sent = sent


class CommandApi:
    """Asks one node, and when that one is gone, the next. Errors are Problems."""

    def __init__(self, find: Callable[[], list[str]], kafka: Mapping[str, str] | None = None) -> None:
        """`kafka`: librdkafka's settings, which have the login and TLS."""
        self._find = find
        self._urls: list[str] = []
        self.kafka = dict(kafka or {})
        self._opener = opener(self.kafka)

    @property
    def user(self) -> str | None:
        """The user as whom requests are sent."""
        return self.kafka.get("sasl.username")

    @property
    def urls(self) -> list[str]:
        """The nodes' addresses, the one that answered last first."""
        self._urls = self._urls or self._find()
        return list(self._urls)

    def ask(
        self, method: str, path: str, wanted: type[T], body: object = None, *, repeatable: bool = False
    ) -> T:
        """A request that a node may have received goes to another one only if it may be done twice."""
        gone: NoAnswer | None = None
        for url in self.urls:
            try:
                found = self._ask(url, method, path, wanted, body)
            except NoAnswer as failure:
                if failure.sent and not repeatable and method != "GET":
                    raise
                gone = gone or failure
                continue
            self._urls = [url, *(other for other in self._urls if other != url)]
            return found
        assert gone is not None
        raise gone

    def _ask(self, url: str, method: str, path: str, wanted: type[T], body: object) -> T:
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "penstock-cli",
            **login.http_headers(self.kafka, url),
        }
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url + path, data=data, method=method, headers=headers)
        return _answer(self._opener, request, url, path, wanted, body)


class ResourcesApi(CommandApi):
    """The operations on resources of one kind. Arguments that are None are left out."""

    root: str

    def get(self, *path: object, **query: object) -> Facts:
        return self.ask("GET", self._path(path, query), Facts)

    def post(self, *path: object, **body: object) -> Facts:
        given = {name: value for name, value in body.items() if value is not None}
        return self.ask("POST", self._path(path), Facts, given)

    def patch(self, *path: object, **body: object) -> Facts:
        return self.ask("PATCH", self._path(path), Facts, body)

    def put(self, *path: object, **body: object) -> Facts | None:
        return self.ask("PUT", self._path(path), Facts | None, body)  # type: ignore[arg-type]

    def delete(self, *path: object, **query: object) -> None:
        self.remove(*path, **query)

    def remove(self, *path: object, **query: object) -> Facts:
        """Deletes something; the answer may tell what."""
        return self.ask("DELETE", self._path(path, query), Facts | None) or {}  # type: ignore[arg-type]

    def _path(self, parts: tuple[object, ...], query: Mapping[str, object] | None = None) -> str:
        given = urlencode({name: value for name, value in (query or {}).items() if value is not None})
        path = "/".join((self.root, *(quote(str(part), safe="") for part in parts)))
        return f"{path}?{given}" if given else path


class QueuesApi(ResourcesApi):
    root = "/v1/queues"


class SubscriptionsApi(ResourcesApi):
    root = "/v1/subscriptions"


class CliquesApi(ResourcesApi):
    root = "/v1/cliques"


class UsersApi(ResourcesApi):
    root = "/v1/users"


class AclsApi(ResourcesApi):
    root = "/v1/acls"


class QuotasApi(ResourcesApi):
    root = "/v1/quotas"


class RolesApi(ResourcesApi):
    """Roles and their grants have different paths."""

    root = "/v1"


# --- one request


def _answer(
    opener: urllib.request.OpenerDirector,
    request: urllib.request.Request,
    url: str,
    path: str,
    wanted: type[T],
    body: object,
) -> T:
    try:
        with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
            return msgspec.json.decode(answer.read() or b"null", type=wanted)
    except urllib.error.HTTPError as refused:
        raise _refusal(url, refused, path, body) from None
    except urllib.error.URLError as failure:
        if isinstance(failure.reason, ssl.SSLError):
            raise _tls_problem(url, failure.reason) from None
        raise NoAnswer(url, failure.reason, sent=False) from None
    except OSError as failure:  # the connection broke, or there was no answer in time
        raise NoAnswer(url, failure, sent=True) from None
    except (HTTPException, ValueError):  # another protocol
        raise _not_penstock(url) from None


def _tls_problem(url: str, failure: ssl.SSLError) -> Problem:
    if isinstance(failure, ssl.SSLCertVerificationError):
        return Problem(
            f"the certificate of {url} is not trusted: {failure.verify_message}",
            "--tls-ca names the file with the authority that signed it",
        )
    return Problem(
        f"TLS with {url} failed: {failure.reason}", "does the port speak TLS? --http names another one"
    )


def _queue_of(path: str, body: object) -> str:
    """The queue that a request is about, as one writes it in a shell."""
    parts = path.partition("?")[0].split("/")
    name = unquote(parts[3]) if parts[2:3] == ["queues"] and len(parts) > 3 else ""
    if isinstance(body, dict):
        name = name or str(body.get("queue", ""))
    return shlex.quote(name) if name else "NAME"


def _refusal(url: str, refused: urllib.error.HTTPError, path: str, body: object) -> Problem:
    kind = "".join(path.partition("?")[0].split("/")[2:3])
    try:
        error = json.loads(refused.read())["error"]
        hint = HINTS.get(f"{kind}/{error['code']}", HINTS.get(error["code"], ""))
        return Problem(_in_options(error), hint.replace("{queue}", _queue_of(path, body)))
    except (OSError, ValueError, TypeError, KeyError):
        return _not_penstock(url)


def _in_options(error: Facts) -> str:
    """The API's message, with the command line's names for fields."""
    message = re.sub(r"`(\w+)`", lambda found: OPTIONS.get(found[1], found[0]), error["message"])
    field = error.get("field")
    if error["code"] != "invalid_field" or not field or field == "configs":
        return message
    unit = " (milliseconds)" if field.endswith("_ms") else ""
    return f"{OPTIONS.get(field, field)}: {message}{unit}"


def _not_penstock(url: str) -> Problem:
    return Problem(
        f"{url} answers, but not as a Penstock node of this version",
        "--http wants the address that `penstock serve` prints after `http`",
    )


# --- finding a node


def _parsed(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """HOST:PORT, as `serve` takes it, or a URL."""
    source = ctx.get_parameter_source(parameter.name or "")
    if value is None or (source is ParameterSource.ENVIRONMENT and profiles.is_explicit(ctx)):
        return None
    _url("--http", value, {})
    return value


def _url(name: str, value: str, kafka: Mapping[str, str]) -> str:
    """With TLS for Kafka, an address without a scheme has TLS, too."""
    scheme, separator, rest = value.rpartition("://")
    address = rest.rstrip("/")
    try:
        Address.parse(name, address)
    except ConfigError:
        raise click.BadParameter(
            f"{value!r}: expected HOST:PORT or http://HOST:PORT", param_hint=name
        ) from None
    if separator and scheme not in ("http", "https"):
        raise click.BadParameter(f"{value!r}: expected HOST:PORT or http://HOST:PORT", param_hint=name)
    usual = "https" if login.is_encrypted(kafka) else "http"
    return f"{scheme or usual}://{address}"


def find_urls(connection: Connection) -> list[str]:
    """The HTTP addresses of a cluster's nodes, asked over Kafka's protocol."""
    admin = connection.admin()
    try:
        return http_urls(admin)
    except Denied:
        raise Problem(
            f"the broker at {connection.bootstrap} has no HTTP port, which this command needs",
            "start the nodes with `--http HOST:PORT` instead of `--http none`; brokers other than Penstock have none",
        ) from None
    except ClientError as failure:
        raise connection.refusal() or Problem(
            f"{connection.bootstrap}: {failure}", f"--http or {HTTP_VARIABLE} names a node's HTTP address"
        ) from None


HTTP_OPTION = click.option(
    "--http", metavar="HOST:PORT", envvar=HTTP_VARIABLE, callback=_parsed, show_envvar=True,
    help="A node's HTTP address.  [default: as the broker at --bootstrap says]",
)  # fmt: skip


def asks(kind: type[CommandApi]) -> Callable[[Command], Command]:
    """Gives a command --bootstrap, -X and --http, and hands them over as `api`."""

    def make(bootstrap: str, settings: dict[str, str], http: str | None) -> CommandApi:
        connection = connect_to(bootstrap, settings)
        address = http or profiles.applied().http
        if address is None:
            return kind(lambda: find_urls(connection), connection.settings)
        url = _url("--http" if http else "http of the profile", address, connection.settings)
        return kind(lambda: [url], connection.settings)

    return hand_over("api", make, [HTTP_OPTION, *CONNECTION_OPTIONS])
