"""The APIs and versions that the codec knows. The registry of the handlers says which a node *advertises*."""

from importlib import import_module

from penstock.kafka.wire.messages.index import APIS, ApiKey
from penstock.kafka.wire.schema import Message

__all__ = [
    "APIS",
    "ApiKey",
    "flexible_from",
    "is_flexible",
    "is_known",
    "request_class",
    "response_class",
    "schema_range",
]

_classes: dict[tuple[int, str], type[Message]] = {}


def is_known(api_key: int, version: int) -> bool:
    api = APIS.get(api_key)
    return api is not None and api.first <= version <= api.last


def schema_range(api_key: int) -> tuple[int, int]:
    """The first and last version that can be decoded and encoded."""
    api = APIS[api_key]
    return api.first, api.last


def flexible_from(api_key: int) -> int:
    """The first version with compact lengths and tagged fields, in body and headers (NEVER if none)."""
    return APIS[api_key].flexible_from


def is_flexible(api_key: int, version: int) -> bool:
    """Whether a known API's known version has compact lengths and tagged fields."""
    api = APIS.get(api_key)
    return api is not None and api.flexible_from <= version <= api.last


def request_class(api_key: int) -> type[Message]:
    return _load(api_key, "Request")


def response_class(api_key: int) -> type[Message]:
    return _load(api_key, "Response")


def _load(api_key: int, direction: str) -> type[Message]:
    """Imports an API's messages when first asked for, so that importing the codec stays cheap."""
    cls = _classes.get((api_key, direction))
    if cls is None:
        api = APIS[api_key]
        module = import_module(f"penstock.kafka.wire.messages.{api.module}")
        cls = _classes[api_key, direction] = getattr(module, api.name + direction)
    return cls
