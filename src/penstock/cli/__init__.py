"""The `penstock` command: the composition root, which puts all other packages together."""

from penstock.cli.app import main

__all__ = ["main"]
