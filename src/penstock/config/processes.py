"""The nodes of one machine: `penstock serve --processes N` runs N of them, each in a process of its own.

The configuration is that of the first process. The others follow from it by these rules, none of which depends on N,
so that a process is the same node whenever it runs:

1. Process k has the node id `node_id + 100 * (k - 1)`.
2. Its ports are those of the first process plus k - 1, also where they are advertised. A port 0 is a free one for each.
3. Its data is in `data_dir` if it is the first, and else in `data_dir/process-K`. So a node that ran alone goes on as
   the first process of its machine.
4. All of them name one machine, by default `machine-NODE_ID`: it holds at most one replica of a partition
   (`cluster/placement.py`), and has one vote (`cluster/quorum.py`).
5. The seeds are those of the configuration. Without any, the first process founds a cluster of its own, and it is the
   seed of the others. So seeds that name the first process of each machine make founders, and first voters, on
   different machines.
"""

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from penstock.config.address import UNREACHABLE_HOSTS, Address
from penstock.config.listeners import Listener
from penstock.config.node import NodeConfig
from penstock.errors import ConfigError

ID_STEP = 100
LOCAL_HOST = "127.0.0.1"
LAST_PORT = 65_535

FreePort = Callable[[], int]
"""A port that is free for TCP and UDP."""


def process_configs(config: NodeConfig, free_port: FreePort) -> tuple[NodeConfig, ...]:
    """One valid configuration for each process. ConfigError names the setting with which there can be only one."""
    _check(config)
    if config.processes == 1:
        return (config,)
    first = first_process(config, free_port)
    seeds = config.seeds or (_advertised(first),)
    others = [_other(config, first, number, seeds, free_port) for number in range(2, config.processes + 1)]
    configs = (first, *others)
    _check_ports(configs)
    return tuple(one.validate() for one in configs)


def process_folder(data_dir: str, number: int) -> str:
    """Rule 3."""
    return data_dir if number == 1 else f"{data_dir.rstrip('/') or '/'}/process-{number}"


def _check(config: NodeConfig) -> None:
    if config.processes == 1:
        return
    if config.memory:
        expected = (
            "1 with memory=true: a process that ends is started again, and would come back without the partitions that "
            "only it has"
        )
        raise ConfigError("processes", config.processes, expected)
    if config.node_id >= ID_STEP:
        expected = f"0 to {ID_STEP - 1} with processes > 1: the second process has the id node_id + {ID_STEP}"
        raise ConfigError("node_id", config.node_id, expected)


def first_process(config: NodeConfig, free_port: FreePort) -> NodeConfig:
    """The one whose settings are those of the configuration, as a node of a machine: with an inter-node port."""
    cluster = config.cluster or Address(LOCAL_HOST, 0)
    return replace(
        config,
        processes=1,
        machine=config.machine or f"machine-{config.node_id}",
        kafka=_moved(config.kafka, 0, free_port) if not config.listeners else config.kafka,
        listeners=tuple(_listener(one, 0, free_port) for one in config.listeners),
        http=None if config.http is None else _moved(config.http, 0, free_port),
        cluster=_moved(cluster, 0, free_port),
    )


def _other(
    config: NodeConfig, first: NodeConfig, number: int, seeds: tuple[Address, ...], free_port: FreePort
) -> NodeConfig:
    """`config` tells which ports are to be free ones, which `first` has already."""
    step = number - 1
    return replace(
        first,
        node_id=first.node_id + ID_STEP * step,
        data_dir=process_folder(first.data_dir, number),
        kafka=_moved(config.kafka, step, free_port) if not config.listeners else config.kafka,
        advertise=_advertise(config.advertise, step),
        listeners=tuple(_listener(one, step, free_port) for one in config.listeners),
        http=None if config.http is None else _moved(config.http, step, free_port),
        cluster=_moved(config.cluster or Address(LOCAL_HOST, 0), step, free_port),
        cluster_advertise=_advertise(config.cluster_advertise, step),
        seeds=seeds,
    )


def _advertised(first: NodeConfig) -> Address:
    """Where the others find the first process."""
    assert first.cluster is not None
    told = first.cluster_advertise or first.cluster
    return Address(told.host, told.port or first.cluster.port)


def _listener(listener: Listener, step: int, free_port: FreePort) -> Listener:
    advertise = _advertise(listener.advertise, step)
    return replace(listener, bind=_moved(listener.bind, step, free_port), advertise=advertise)


def _moved(address: Address, step: int, free_port: FreePort) -> Address:
    """Rule 2."""
    return Address(address.host, free_port()) if address.port == 0 else _later(address, step)


def _advertise(address: Address | None, step: int) -> Address | None:
    """An advertised port 0 means the bound one, which is another one for each process already."""
    return address if address is None or address.port == 0 else _later(address, step)


def _later(address: Address, step: int) -> Address:
    if address.port + step > LAST_PORT:
        expected = f"fewer, or lower ports: process {step + 1} would have the port {address.port + step}"
        raise ConfigError("processes", step + 1, expected)
    return Address(address.host, address.port + step)


def _check_ports(configs: tuple[NodeConfig, ...]) -> None:
    """Two processes must not want one port: of the listeners 9092 and 9093, the first one of process 2 is 9093."""
    taken: dict[int, list[tuple[str, str]]] = {}
    for number, config in enumerate(configs, 1):
        for what, address in _binds(config):
            for host, other in taken.setdefault(address.port, []):
                if host == address.host or {host, address.host} & set(UNREACHABLE_HOSTS):
                    expected = (
                        f"ports with room for {len(configs)} processes: {address} is {other}, and {what} of process "
                        f"{number} as well"
                    )
                    raise ConfigError("processes", len(configs), expected)
            taken[address.port].append((address.host, f"{what} of process {number}"))


def _binds(config: NodeConfig) -> Iterator[tuple[str, Address]]:
    for listener in config.kafka_listeners:
        yield "a Kafka port", listener.bind
    if config.http is not None:
        yield "the HTTP port", config.http
    if config.cluster is not None:
        yield "the inter-node port", config.cluster
