"""`penstock` itself: which commands there are, and how a run ends.

A command's module is loaded when the command is used, so that `penstock --help` stays quick; the table below
therefore carries each command's one-line help.

How a run ends:
    0    done, or the reader of our output went away (`penstock consume orders | head`)
    1    the operation failed; stderr says what failed and what to do next
    2    the command line or the configuration is wrong
    130  interrupted with Ctrl-C; 0 where that is the usual end (`serve`, `consume`, `status --follow`)
"""

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from click.shell_completion import CompletionItem

from penstock.cli.build import show_version
from penstock.cli.common_options import PROFILE_OPTION, QUIET_OPTION
from penstock.cli.help import examples
from penstock.cli.long_lived import loading_modules
from penstock.cli.problem import Problem

COMMANDS = {
    "serve": ("penstock.cli.serve:serve", "Run a broker."),
    "demo": ("penstock.cli.demo:demo", "Show the main job, end to end, in about a minute."),
    "topics": ("penstock.cli.topics:topics", "Create, list, describe, alter and delete topics."),
    "produce": ("penstock.cli.produce:produce", "Send lines from stdin to a topic."),
    "consume": ("penstock.cli.consume:consume", "Print a topic's messages."),
    "groups": ("penstock.cli.groups:groups", "List, describe, reset and delete consumer groups."),
    "transactions": (
        "penstock.cli.transactions:transactions",
        "List, describe and abort transactions; find hanging ones.",
    ),
    "subscriptions": ("penstock.cli.subscriptions:subscriptions", "List, describe and delete subscriptions."),
    "queues": ("penstock.cli.queues:queues", "Create, watch and clear work queues and their dead letters."),
    "clique": (
        "penstock.cli.clique:clique",
        "Show cliques: their workers, and what each owns.",
    ),
    "worker": ("penstock.cli.worker:worker", "Run the workers of an application in several processes."),
    "status": ("penstock.cli.status:status", "Show what happens on the broker."),
    "cluster": ("penstock.cli.cluster:cluster", "Run a local cluster; look after any cluster."),
    "users": ("penstock.cli.users:users", "Create, list and delete users, their passwords and tokens."),
    "acls": ("penstock.cli.acls:acls", "Add, list, remove and check access rules."),
    "roles": ("penstock.cli.roles:roles", "Give roles to users and groups; make roles of your own."),
    "quotas": (
        "penstock.cli.quotas:quotas",
        "List, set and remove quotas of users, client ids and addresses.",
    ),
    "certs": ("penstock.cli.certs:certs", "Make certificates for local use."),
    "pipeline": ("penstock.cli.pipeline:pipeline", "Run ready-made pipelines on Spark."),
    "sim": ("penstock.cli.sim:sim", "Run the cluster's code in a simulated world full of faults."),
    "completion": ("penstock.cli.completion:completion", "Print the completion script of a shell."),
    "bench": ("penstock.cli.bench.commands:bench", "Measure throughput, latency, CPU and memory."),
}

EXIT_INTERRUPTED = 130


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name][0].split(":")
        if module not in sys.modules:
            with loading_modules():
                importlib.import_module(module)
        command = getattr(sys.modules[module], attribute)
        assert isinstance(command, click.Command)
        return command

    def make_context(self, *arguments: Any, **settings: Any) -> click.Context:
        with _flushed_output():  # --help and --version print here
            return super().make_context(*arguments, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        with _flushed_output():
            return super().invoke(ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes commands without importing them."""
        found = [
            CompletionItem(name, help=line)
            for name, (_, line) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "penstock serve",
        "penstock topics create orders --partitions 6",
        "echo hello | penstock produce orders",
        "penstock consume orders --from-beginning --exit",
    ),
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_version,
    help="Show the version and exit.",
)
@PROFILE_OPTION
@QUIET_OPTION
def penstock() -> None:
    """Event streaming and work queues that speak Kafka's protocol.

    Commands that talk to a broker take its address from --bootstrap, PENSTOCK_BOOTSTRAP or a profile
    (default 127.0.0.1:9092). topics, produce, consume and groups work with any Kafka broker.
    """


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits with its code."""
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    try:
        _check_stdout()
        code: Any = penstock.main(arguments, prog_name="penstock", standalone_mode=False)
    except click.Abort:  # click's name for Ctrl-C
        return EXIT_INTERRUPTED
    except click.ClickException as problem:
        problem.show()
        return problem.exit_code
    return code if isinstance(code, int) else 0


def _check_stdout() -> None:
    if sys.stdout is None:  # what Python makes of `>&-`
        raise Problem("standard output is closed", "redirect it to /dev/null to discard it")


@contextmanager
def _flushed_output() -> Iterator[None]:
    """Handles a closed or failing stdout, flushed in time: click would call a closed pipe a failure."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
        raise click.exceptions.Exit(0) from None
    except OSError as failure:
        _discard_stdout()
        raise Problem(f"{failure.filename or 'reading or writing'}: {failure.strerror or failure}") from None


def _discard_stdout() -> None:
    """Points stdout at /dev/null, or Python reports the error again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
