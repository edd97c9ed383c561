"""Logins and permissions on one node: decisions that are remembered, logins that cost little, and the first user,
and quotas.

Start reading at `access.py`."""

from penstock.node.access.access import Access
from penstock.node.access.client_quotas import Mutations, Quotas
from penstock.node.access.first_user import FirstUser
from penstock.node.access.logins import Logins

__all__ = ["Access", "FirstUser", "Logins", "Mutations", "Quotas"]
