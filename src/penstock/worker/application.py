"""Finds the client of an application by MODULE:NAME."""

import sys
from importlib import import_module
from typing import Any

from penstock.client.base import BaseClient
from penstock.errors import PenstockError

AnyClient = BaseClient[Any, Any, Any, Any]


class NotAnApplication(PenstockError):
    """The target names no client that has workers."""


def load_client(target: str) -> AnyClient:
    """`shop.jobs:client`, or a function that returns a client. Modules are also looked for in the current folder.
    Errors that the module itself raises are not caught."""
    module_name, colon, name = target.partition(":")
    if not (module_name and colon and name):
        raise NotAnApplication(f"{target!r}: expected MODULE:CLIENT, such as shop.jobs:client")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as missing:
        if missing.name is not None and f"{module_name}.".startswith(f"{missing.name}."):
            raise NotAnApplication(f"{target!r}: there is no module {missing.name!r} here") from None
        raise
    for part in name.split("."):
        if not hasattr(found, part):
            raise NotAnApplication(f"{target!r}: {module_name} has no {part!r}")
        found = getattr(found, part)
    if callable(found) and not isinstance(found, BaseClient):
        found = found()
    if not isinstance(found, BaseClient):
        raise NotAnApplication(f"{target!r} is a {type(found).__name__}: expected a Client or an AsyncClient")
    if not found.has_handlers:
        raise NotAnApplication(f"{target!r} has no workers: decorate handlers with @client.worker(...)")
    return found
