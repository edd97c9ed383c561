"""The HTTP port: health, readiness, metrics, the cluster, and the web API (`api`)."""

from penstock.web.port import WebPort

__all__ = ["WebPort"]
