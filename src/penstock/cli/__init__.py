"""The `penstock` command: the composition root, where every other room is put together."""

from penstock.cli.app import main

__all__ = ["main"]
