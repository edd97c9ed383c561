"""`penstock completion`: a script that lets a shell complete commands and options."""

import click
from click.shell_completion import get_completion_class

from penstock.cli.help import examples

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_PENSTOCK_COMPLETE"
"""The variable by which the script asks for completions: click's, for a program of this name."""


@click.command(
    epilog=examples(
        'eval "$(penstock completion bash)"                     # for this shell; or in ~/.bashrc',
        "penstock completion zsh > ~/.zfunc/_penstock",
        "penstock completion fish > ~/.config/fish/completions/penstock.fish",
    )
)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of SHELL."""
    kind = get_completion_class(shell)
    assert kind is not None
    command = click.get_current_context().find_root().command
    # Not `source()`, which runs bash to look at its version: the script may be for another machine.
    script = kind(command, {}, "penstock", VARIABLE)
    click.echo(script.source_template % script.source_vars())
