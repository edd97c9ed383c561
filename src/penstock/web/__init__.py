"""The HTTP port: health, readiness and metrics. The web API will grow here."""

from penstock.web.port import WebPort

__all__ = ["WebPort"]
