"""`penstock users`: create, list and delete users, set passwords, and manage API tokens."""

import secrets
import sys

import click

from penstock.cli.common_options import json_option
from penstock.cli.help import examples
from penstock.cli.http_api import Facts, UsersApi, asks
from penstock.cli.login import read_password
from penstock.cli.output import counted, note, show_facts, show_json
from penstock.cli.parameters import Duration
from penstock.cli.queues_show import moment
from penstock.cli.topics import confirm
from penstock.security.passwords import PASSWORD_RANDOM_BYTES, make_password

LONGEST_MS = 10 * 365 * 86_400_000

new_password_option = click.option(
    "--new-password-file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="The file with the new password; - is stdin.  [default: a question]",
)  # fmt: skip
generate_option = click.option("--generate", is_flag=True, help="Make a password and print it.")


@click.group(
    epilog=examples(
        "penstock users create alice",
        "penstock users list",
        "penstock users passwd alice",
        "penstock users token create alice --description 'nightly import'",
    )
)
def users() -> None:
    """Create, list and delete users, set passwords, and manage API tokens.

    Users log in to the Kafka port (SCRAM-SHA-256, SCRAM-SHA-512, PLAIN) and to the HTTP port with the same name and
    password. `penstock roles grant` and `penstock acls add` give them permissions.
    """


@users.command(
    epilog=examples(
        "penstock users create alice",
        "penstock users create importer --generate",
        "penstock users create alice --new-password-file alice.txt",
    )
)
@click.argument("name")
@new_password_option
@generate_option
@json_option
@asks(UsersApi)
def create(api: UsersApi, name: str, new_password_file: str | None, generate: bool, as_json: bool) -> None:
    """Create a user, for both kinds of SCRAM."""
    password = _new_password(name, new_password_file, generate)
    made = api.post(user=name, password=password)
    note(f"created {name}; it may do nothing yet: `penstock roles grant ROLE {name}` gives it a role")
    _show_made(made, password if generate else None, as_json)


def _show_made(made: Facts, generated: str | None, as_json: bool) -> None:
    if as_json:
        show_json({**made, "password": generated} if generated else made)
    elif generated:
        click.echo(generated)


def _new_password(name: str, file: str | None, generate: bool) -> str:
    if generate:
        return make_password(secrets.token_bytes(PASSWORD_RANDOM_BYTES))
    if file is not None:
        return read_password(file)
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError(
            "the new password is missing: --new-password-file FILE (- is stdin), or --generate"
        )
    asked: str = click.prompt(f"new password of {name}", hide_input=True, confirmation_prompt=True, err=True)
    return asked


@users.command(
    "list", epilog=examples("penstock users list", "penstock users list --json | jq -r '.[].user'")
)
@json_option
@asks(UsersApi)
def list_users(api: UsersApi, as_json: bool) -> None:
    """List users, how they may log in, and how many API tokens they have."""
    rows = api.get()["users"]
    show_facts(rows, as_json, "user", "mechanisms", "tokens", "super user=super_user", nothing="no users")


@users.command(epilog=examples("penstock users delete alice", "penstock users delete alice bob --yes"))
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@asks(UsersApi)
def delete(api: UsersApi, names: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete users and their API tokens, at once: open connections end.

    Access rules and roles that name a user stay, as in Kafka, and a later user of the same name has them.
    """
    if not yes:
        confirm(f"delete {', '.join(names)}?")
    deleted = [_delete(api, name) for name in names]
    if as_json:
        show_json(deleted)


def _delete(api: UsersApi, name: str) -> Facts:
    found = api.remove(name)
    tokens = f" and {counted(found['tokens_deleted'], 'token')}" if found["tokens_deleted"] else ""
    note(f"deleted {name}{tokens}")
    if found["acls_left"]:
        rules = counted(found["acls_left"], "access rule")
        note(f"left for User:{name}: {rules}; `penstock acls remove --principal {name}` removes them")
    if found["grants_left"]:
        roles = counted(found["grants_left"], "role")
        note(f"left for User:{name}: {roles}; `penstock roles revoke ROLE {name}` takes them away")
    return found


@users.command(
    epilog=examples(
        "penstock users passwd --user alice",
        "penstock users passwd alice",
        "penstock users passwd alice --new-password-file alice.txt",
    )
)
@click.argument("name", required=False)
@new_password_option
@generate_option
@asks(UsersApi)
def passwd(api: UsersApi, name: str | None, new_password_file: str | None, generate: bool) -> None:
    """Set another password: your own, or that of the user NAME. Its API tokens stay."""
    user = _named(api, name)
    password = _new_password(user, new_password_file, generate)
    api.put(user, "password", password=password)
    note(f"{user} has another password")
    if generate:
        click.echo(password)


def _named(api: UsersApi, name: str | None) -> str:
    user = name or api.user
    if user is None:
        raise click.UsageError("which user? give its name, or log in with --user")
    return user


# --- tokens


@users.group(
    epilog=examples(
        "penstock users token create importer --expires 90d",
        "penstock users token list importer",
        "penstock users token revoke mfrggzdfmztwq2lk --of importer",
    )
)
def token() -> None:
    """Manage API tokens: passwords for programs, for the HTTP port (Authorization: Bearer pst_...).

    A token acts as its user. Users manage their own tokens, logged in with their password.
    """


@token.command(
    "create",
    epilog=examples(
        "penstock users token create --user alice",
        "penstock users token create importer --description 'nightly import' --expires 90d",
        "penstock users token create importer > importer-token",
    ),
)
@click.argument("name", required=False)
@click.option("--description", default="", help="What it is for.")
@click.option("--expires", "lifetime_ms", type=Duration(1, LONGEST_MS), metavar="DURATION",
              help="For how long it is good, as in 90d.  [default: until it is revoked]")  # fmt: skip
@json_option
@asks(UsersApi)
def create_token(
    api: UsersApi, name: str | None, description: str, lifetime_ms: int | None, as_json: bool
) -> None:
    """Make an API token for yourself, or for the user NAME, and print it. It is not shown again."""
    made = api.post(_named(api, name), "tokens", description=description, lifetime_ms=lifetime_ms)
    note(f"the token {made['token_id']} of {made['user']}; keep it: it is not shown again")
    if as_json:
        show_json(made)
    else:
        click.echo(made["token"])


@token.command(
    "list",
    epilog=examples("penstock users token list importer", "penstock users token list importer --json"),
)
@click.argument("name", required=False)
@json_option
@asks(UsersApi)
def list_tokens(api: UsersApi, name: str | None, as_json: bool) -> None:
    """List your API tokens, or those of the user NAME, without their secrets."""
    rows = api.get(_named(api, name), "tokens")["tokens"]
    if not as_json:
        rows = [
            {**row, "created": _moment(row["created_ms"]), "expires": _moment(row["expires_ms"])}
            for row in rows
        ]
    columns = ("token=token_id", "description", "created", "expires")
    show_facts(rows, as_json, *columns, nothing="no tokens")


def _moment(at_ms: int | None) -> str | None:
    return moment(at_ms, "seconds")


@token.command(
    "revoke",
    epilog=examples(
        "penstock users token revoke mfrggzdfmztwq2lk --user alice",
        "penstock users token revoke mfrggzdfmztwq2lk --of importer",
    ),
)
@click.argument("token_ids", nargs=-1, required=True, metavar="TOKEN...")
@click.option("--of", "name", metavar="NAME", help="The user whose tokens they are.  [default: yourself]")
@asks(UsersApi)
def revoke_token(api: UsersApi, token_ids: tuple[str, ...], name: str | None) -> None:
    """Revoke API tokens, at once. TOKEN is the id that `list` shows."""
    user = _named(api, name)
    for token_id in token_ids:
        api.delete(user, "tokens", token_id)
        note(f"revoked {token_id}")
