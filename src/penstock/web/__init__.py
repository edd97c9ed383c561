"""The HTTP port: health, readiness, metrics, the web API (`api`), and WebSockets for push and workers."""

from penstock.web.port import WebPort

__all__ = ["WebPort"]
