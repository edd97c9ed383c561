"""The HTTP port: health, readiness, metrics, and the cluster. The web API will grow here."""

from penstock.web.port import WebPort

__all__ = ["WebPort"]
