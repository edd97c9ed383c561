"""Records that a query should have read and that no longer exist: the query fails, or logs a warning."""

import logging

from penstock.errors import PenstockError

log = logging.getLogger("penstock.spark")

GO_ON = "To continue with the remaining records, and have each gap logged, set failOnDataLoss=false"
HINT = f"Raise the topic's retention, or run the query more often. {GO_ON}"
HINT_OTHER = f"If this checkpoint is of another query or of an older topic, start with a new one. {GO_ON}"
"""For a topic or partition that was deleted or created again: longer retention would not have helped."""


class DataLoss(PenstockError):
    """Offsets that were to be read are gone: retention, truncation, or the topic was deleted or created again."""


def report(what: str, *, fail: bool, hint: str = HINT) -> None:
    """Raises DataLoss, or logs a warning if the query is to continue."""
    if fail:
        raise DataLoss(f"{what}. {hint}")
    log.warning("data loss, ignored because of failOnDataLoss=false: %s", what)
