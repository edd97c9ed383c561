"""Push: connected subscribers, and the stored positions of subscriptions.

`manager` has the attached subscribers; `session` serves one of them, as its core (`penstock.queue.subscription`)
decides; `page_reader` reads for all of them, in `pages`; `store` keeps positions as committed offsets; `router`
describes and deletes subscriptions on any node.
"""

from penstock.node.subscriptions.manager import SubscriptionManager
from penstock.node.subscriptions.session import SubscriberSession, position_json
from penstock.node.subscriptions.values import (
    BatchesRead,
    Bounds,
    ControlFrame,
    EndReason,
    RecordEncoder,
    Redirect,
    Rows,
    SubscribeRefused,
    SubscribeRequest,
)

__all__ = [
    "BatchesRead",
    "Bounds",
    "ControlFrame",
    "EndReason",
    "RecordEncoder",
    "Redirect",
    "Rows",
    "SubscribeRefused",
    "SubscribeRequest",
    "SubscriberSession",
    "SubscriptionManager",
    "position_json",
]
