"""Logins and permissions on one node: decisions that are remembered, logins that cost little, and the first user,
and quotas.

Start reading at `access.py`."""

from penstock.node.access.access import Access
from penstock.node.access.client_quotas import Mutations, Quotas

__all__ = ["Access", "Mutations", "Quotas"]
