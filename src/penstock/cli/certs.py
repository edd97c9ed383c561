"""`penstock certs`: certificates for local use."""

from pathlib import Path

import click

from penstock.cli.help import examples
from penstock.cli.problem import Problem

LONGEST_DAYS = 3650


@click.group(epilog=examples("penstock certs dev"))
def certs() -> None:
    """Make certificates for local use."""


@certs.command(
    epilog=examples(
        "penstock certs dev",
        "penstock certs dev /tmp/certs --host broker.test --host 10.0.0.7",
        "penstock certs dev --client alice",
    )
)
@click.argument(
    "folder", metavar="[DIR]", default="penstock-certs", type=click.Path(file_okay=False, path_type=Path)
)
@click.option("--host", "hosts", metavar="NAME", multiple=True,
              help="A name or an address of the broker, beside localhost, 127.0.0.1 and ::1. Repeatable.")  # fmt: skip
@click.option("--client", metavar="NAME", default="client", show_default=True,
              help="The name in the client's certificate.")  # fmt: skip
@click.option("--days", type=click.IntRange(1, LONGEST_DAYS), default=825, show_default=True,
              help="How long they are valid.")  # fmt: skip
def dev(folder: Path, hosts: tuple[str, ...], client: str, days: int) -> None:
    """Make an authority, and certificates for a broker and a client.

    For one machine and for tests: who has DIR/ca.key can pose as any broker to those who trust DIR/ca.pem. An authority
    that is in DIR already is used again.
    """
    from penstock.node.tls.dev_certificates import LOCAL_HOSTS, DevCertificates

    names = (*LOCAL_HOSTS, *hosts)
    try:
        made = DevCertificates(folder, days=days)
        made.issue("broker", common_name="broker", hosts=names)
        made.issue("client", common_name=client)
    except OSError as problem:
        raise Problem(f"{problem.filename or folder}: {problem.strerror}", "choose another folder") from None
    except ValueError as problem:
        raise Problem(f"{folder}: {problem}", "choose another folder, or empty this one") from None
    _tell(folder, names, client, made.is_new)


def _tell(folder: Path, names: tuple[str, ...], client: str, is_new: bool) -> None:
    authority = "a new authority" if is_new else "the authority that was there"
    click.echo(
        f"""\
{folder} has certificates of {authority}, for local use only:
  ca.pem                   give it to clients
  ca.key                   signs more certificates: keep it secret
  broker.pem, broker.key   for {", ".join(names)}
  client.pem, client.key   for CN={client}

Broker:              penstock serve --tls-cert {folder}/broker.pem --tls-key {folder}/broker.key
  asks for clients' certificates as well:  --tls-ca {folder}/ca.pem
Kafka clients:       security.protocol=ssl  ssl.ca.location={folder}/ca.pem
  with a certificate:  ssl.certificate.location={folder}/client.pem  ssl.key.location={folder}/client.key
HTTP:                curl --cacert {folder}/ca.pem https://127.0.0.1:8080/ready
Between nodes:       [inter_node_tls] in the config file, with cert, key and ca"""
    )
