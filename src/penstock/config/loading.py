"""Makes one NodeConfig of four layers: defaults < TOML file < environment < command line.

All layers have the same settings. In the file they are TOML keys, with the tables `[groups]`, `[share_groups]`,
`[transactions]`, `[lake]`, `[schema_registry]`, `[replication]`, `[limits]` and `[topic_defaults]`; in the environment
`PENSTOCK_` and the key in capitals, with the table's name in front (`PENSTOCK_NUM_PARTITIONS`,
`PENSTOCK_LIMITS_MAX_CONNECTIONS`, `PENSTOCK_TOPIC_DEFAULTS_RETENTION_MS`). Tables with a name of their own
(`[[topics]]`, `[[queues]]`, `[[listeners]]`, `[http_tls]`, `[inter_node_tls]`) are in the file only.
A name that is not known is an error that suggests the nearest one, because a misspelt setting would silently have no
effect.

One file can serve a whole cluster: settings under `[nodes.2]` are for node 2 alone and win over the rest of the file.
The addresses of the nodes' inter-node ports are then also the seeds, unless the file names others.

This module reads no file: the caller passes the file's text and the environment.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, get_type_hints

from penstock.config.address import Address
from penstock.config.cluster import ClusterSettings
from penstock.config.declared import DeclaredQueue, DeclaredTopic, config_text, read_declared
from penstock.config.definitions import TOPIC_CONFIGS
from penstock.config.fields import convert_field
from penstock.config.lake import LakeSettings
from penstock.config.limits import Limits
from penstock.config.listeners import InterNodeTls, read_http_tls, read_listeners, read_table
from penstock.config.node import GroupSettings, NodeConfig
from penstock.config.oidc import OidcSettings
from penstock.config.schema_registry import SchemaRegistrySettings
from penstock.config.share_groups import ShareGroupSettings
from penstock.config.transactions import TransactionSettings
from penstock.errors import ConfigError
from penstock.nearest import nearest

ENVIRONMENT_PREFIX = "PENSTOCK_"
JOB_VARIABLES = frozenset(
    f"{ENVIRONMENT_PREFIX}{name}" for name in ("QUEUE", "TOPIC", "PARTITION", "OFFSET", "KEY", "DELIVERIES")
)
"""Variables of commands that `penstock queues work` runs."""
OTHER_VARIABLES = JOB_VARIABLES | {
    "PENSTOCK_BOOTSTRAP",
    "PENSTOCK_CLIENT_TLS_CA",
    "PENSTOCK_CONFIG",
    "PENSTOCK_HTTP_URL",
    "PENSTOCK_PASSWORD",
    "PENSTOCK_PROFILE",
    "PENSTOCK_PURE_PYTHON",
    "PENSTOCK_USER",
}
"""Variables that are no settings of a node: the broker that commands talk to, by Kafka and by HTTP, and their login, or
the profile that names it; the path of the config file; a switch of the build."""

# Kubernetes gives every pod variables for each service, and a service may well be called penstock or penstock-kafka.
SERVICE_LINK = re.compile(
    r"PENSTOCK_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)

_SECTIONS: dict[str, type] = {
    "groups": GroupSettings,
    "share_groups": ShareGroupSettings,
    "transactions": TransactionSettings,
    "lake": LakeSettings,
    "schema_registry": SchemaRegistrySettings,
    "oidc": OidcSettings,
    "replication": ClusterSettings,
    "limits": Limits,
}
_ADDRESSES = ("kafka", "advertise", "http", "cluster", "cluster_advertise")
_NODES = "nodes"
_TOPIC_DEFAULTS = "topic_defaults"
_OFF = ("off", "none", "")


FORMER_SETTINGS = {
    "replication.snapshot_after_bytes": ": it never had an effect and was removed; delete the line"
}
"""Settings of earlier versions, and what to do where a file still has them."""


class UnknownSetting(ConfigError):
    """No setting has this name. The message says that, instead of what was expected of the value."""

    def __init__(self, field: str, value: object, hint: str) -> None:
        super().__init__(field, value, f"a known setting{hint}")
        self.args = (f"there is no setting {field}{hint}",)


class _Setting(NamedTuple):
    origin: str
    value: object
    layer: int


def load_node_config(
    *,
    flags: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    toml_text: str = "",
    toml_name: str = "config file",
    defaults: Mapping[str, object] | None = None,
) -> NodeConfig:
    """The valid NodeConfig that the layers add up to; ConfigError says which setting of which layer is wrong.

    A flag whose value is None was not given. `defaults` replace some of NodeConfig's.
    """
    document = _parsed(toml_text, toml_name)
    nodes = _node_tables(document.pop(_NODES, {}), toml_name)
    from_file = {
        path: _Setting(origin, value, 1) for path, origin, value in _from_tables(document, toml_name)
    }
    stronger: dict[str, _Setting] = {}
    for path, origin, value in _from_environment(environment or {}):
        stronger[path] = _Setting(origin, value, 3)
    for path, value in (flags or {}).items():
        if value is not None:
            stronger[_known(path, path, value)] = _Setting(path, value, 4)
    weakest = {path: _Setting(path, value, 0) for path, value in (defaults or {}).items()}
    settings = {
        **weakest,
        **from_file,
        **_of_this_node(nodes, {**from_file, **stronger}, toml_name),
        **stronger,
    }
    _settle_storage(settings)
    return _build(settings).validate()


def _parsed(text: str, name: str) -> dict[str, object]:
    if not text:
        return {}
    import tomllib  # most nodes have no file

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise ConfigError(name, "", f"TOML: {problem}") from None


def _from_tables(document: Mapping[str, object], name: str) -> Iterator[tuple[str, str, object]]:
    for key, value in document.items():
        path = key.replace("-", "_")
        if path in _SECTIONS or path == _TOPIC_DEFAULTS:
            yield from _from_table(path, value, name)
        else:
            yield _known(path, f"{path} in {name}", value), f"{path} in {name}", value


def _from_table(table: str, value: object, name: str) -> Iterator[tuple[str, str, object]]:
    if not isinstance(value, dict):
        raise ConfigError(f"{table} in {name}", value, f"a table: [{table}]")
    for key, inner in value.items():
        path = f"{table}.{key}"
        yield _known(path, f"{path} in {name}", inner), f"{path} in {name}", inner


def _node_tables(value: object, name: str) -> dict[int, dict[str, _Setting]]:
    """Each node's own settings by its id."""
    if not isinstance(value, dict):
        raise ConfigError(f"{_NODES} in {name}", value, "a table for each node, such as [nodes.1]")
    nodes: dict[int, dict[str, _Setting]] = {}
    for key, table in value.items():
        where = f"[{_NODES}.{key}] in {name}"
        if not key.isascii() or not key.isdigit():
            raise ConfigError(where, key, "a node id, such as [nodes.1]")
        if not isinstance(table, dict):
            raise ConfigError(where, table, f"a table: [{_NODES}.{key}]")
        if "node_id" in table or "node-id" in table:
            raise ConfigError(f"node_id of {where}", key, "no node_id in here: the table's name is the id")
        found = _from_tables(table, f"[{_NODES}.{key}] of {name}")
        nodes[int(key)] = {path: _Setting(origin, value, 2) for path, origin, value in found}
    return nodes


def _of_this_node(
    nodes: dict[int, dict[str, _Setting]], others: Mapping[str, _Setting], name: str
) -> dict[str, _Setting]:
    """The file's settings for the node that starts; its id comes from any other layer."""
    if not nodes:
        return {}
    listed = ", ".join(str(node) for node in sorted(nodes))
    chosen = others.get("node_id")
    if chosen is None:
        raise ConfigError("node_id", None, f"--node-id N, one of those in {name}: {listed}")
    node_id = convert_field(chosen.origin, chosen.value, int)
    if node_id not in nodes:
        raise ConfigError(chosen.origin, node_id, f"the id of a node in {name}, which has {listed}")
    return {**_seeds_of(nodes, others, name), **nodes[node_id]}


def _seeds_of(
    nodes: dict[int, dict[str, _Setting]], others: Mapping[str, _Setting], name: str
) -> dict[str, _Setting]:
    if "seeds" in others:
        return {}
    addresses = [table.get("cluster_advertise", table.get("cluster")) for _, table in sorted(nodes.items())]
    seeds = [address.value for address in addresses if address is not None]
    return {"seeds": _Setting(f"seeds by [{_NODES}] in {name}", seeds, 1)} if seeds else {}


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, str, object]]:
    paths = {ENVIRONMENT_PREFIX + re.sub(r"\W", "_", path).upper(): path for path in _hints()}
    for name, value in environment.items():
        if name in paths:
            yield paths[name], name, value
        elif name.startswith(ENVIRONMENT_PREFIX) and not (
            name in OTHER_VARIABLES or SERVICE_LINK.fullmatch(name)
        ):
            raise UnknownSetting(name, value, nearest(name, paths))


def _known(path: str, origin: str, value: object) -> str:
    if path not in _hints():
        raise UnknownSetting(origin, value, FORMER_SETTINGS.get(path) or nearest(path, _hints()))
    return path


def _hints() -> dict[str, Any]:
    """Every setting, as `key` or `table.key`, and its type."""
    hints = get_type_hints(NodeConfig, include_extras=True)
    for table, struct in _SECTIONS.items():
        del hints[table]
        inner = get_type_hints(struct, include_extras=True)
        hints.update({f"{table}.{name}": hint for name, hint in inner.items()})
    del hints[_TOPIC_DEFAULTS]
    hints.update({f"{_TOPIC_DEFAULTS}.{name}": str for name in TOPIC_CONFIGS})
    return hints


def _settle_storage(settings: dict[str, _Setting]) -> None:
    """`memory` and `data_dir` exclude each other; the stronger layer decides."""
    memory, data_dir = settings.get("memory"), settings.get("data_dir")
    if memory is None or data_dir is None or not convert_field(memory.origin, memory.value, bool):
        return
    if memory.layer == data_dir.layer:
        raise ConfigError(
            data_dir.origin, data_dir.value, f"no folder, because {memory.origin} is set: remove one of them"
        )
    if data_dir.layer > memory.layer:
        settings["memory"] = memory._replace(value=False)


def _build(settings: dict[str, _Setting]) -> NodeConfig:
    hints = _hints()
    tables: dict[str, dict[str, Any]] = {table: {} for table in ("", _TOPIC_DEFAULTS, *_SECTIONS)}
    for path, setting in settings.items():
        table, _, name = path.partition(".") if "." in path else ("", "", path)
        tables[table][name] = _read(path, setting, hints[path])
    sections = {table: struct(**tables[table]) for table, struct in _SECTIONS.items()}
    return NodeConfig(**tables[""], **sections, topic_defaults=tables[_TOPIC_DEFAULTS])


def _read(path: str, setting: _Setting, hint: Any) -> Any:
    origin, value, _ = setting
    if path == "http" and (value is False or str(value).lower() in _OFF):
        return None
    if path in _ADDRESSES:
        return Address.parse(origin, value)
    if path in _READERS:
        return _READERS[path](origin, value)
    if path.startswith(_TOPIC_DEFAULTS):
        return config_text(value)
    return convert_field(origin, value, hint)


def _read_super_users(origin: str, value: object) -> tuple[str, ...]:
    """A list in TOML. Elsewhere `;` separates them, as in Kafka: a certificate's subject has commas."""
    parts = value if isinstance(value, list) else str(value).split(";")
    return tuple(str(part).strip() for part in parts if str(part).strip())


def _read_names(origin: str, value: object) -> tuple[str, ...]:
    """A list in TOML, a comma-separated string elsewhere."""
    parts = value if isinstance(value, list) else str(value).split(",")
    return tuple(str(part).strip() for part in parts if str(part).strip())


def _read_networks(origin: str, value: object) -> tuple[str, ...]:
    from ipaddress import ip_network

    names = _read_names(origin, value)
    for name in names:
        try:
            ip_network(name)
        except ValueError:
            expected = "an address or a network, such as 127.0.0.1 or 10.0.0.0/8"
            raise ConfigError(origin, name, expected) from None
    return names


def _read_seeds(origin: str, value: object) -> tuple[Address, ...]:
    """A list in TOML, a comma-separated string elsewhere."""
    parts = value if isinstance(value, list) else str(value).split(",")
    return tuple(Address.parse(origin, str(part).strip()) for part in parts if str(part).strip())


_READERS: dict[str, Callable[[str, object], Any]] = {
    "seeds": _read_seeds,
    "super_users": _read_super_users,
    "http_hosts": _read_names,
    "http_trusted_proxies": _read_networks,
    "topics": lambda origin, value: read_declared(origin, value, DeclaredTopic),
    "queues": lambda origin, value: read_declared(origin, value, DeclaredQueue),
    "listeners": read_listeners,
    "http_tls": read_http_tls,
    "inter_node_tls": lambda origin, value: read_table(origin, value, InterNodeTls),
}
"""Settings that are not written as their type is."""
