"""Push: subscribers that are connected, and the positions that are kept for them.

`manager` knows who is attached; `attachment` serves one subscriber, by what its core (`penstock.queue.subscription`)
decides; `feeds` reads for all of them, `pages` is what they read; `store` keeps positions as committed offsets;
`router` describes and deletes subscriptions on any node.
"""

from penstock.node.subscriptions.attachment import Attachment, place_told
from penstock.node.subscriptions.manager import Subscriptions
from penstock.node.subscriptions.router import SubscriptionRouter
from penstock.node.subscriptions.values import (
    Bounds,
    Elsewhere,
    Encoder,
    Ending,
    Notice,
    Reader,
    Refused,
    Rows,
    Wish,
)

__all__ = [
    "Attachment",
    "Bounds",
    "Elsewhere",
    "Encoder",
    "Ending",
    "Notice",
    "Reader",
    "Refused",
    "Rows",
    "SubscriptionRouter",
    "Subscriptions",
    "Wish",
    "place_told",
]
