"""Records that a query should have read and that are no longer there: said aloud, or an end of the query."""

import logging

from penstock.errors import PenstockError

log = logging.getLogger("penstock.spark")

GO_ON = "To go on with what is left, and have each gap logged, set failOnDataLoss=false"
HINT = f"Raise the topic's retention, or run the query more often. {GO_ON}"
HINT_OTHER = f"If this checkpoint is of another query or of an older topic, start with a new one. {GO_ON}"
"""Where a whole topic or partition is another, or gone: no retention would have kept it."""


class DataLoss(PenstockError):
    """Offsets that were to be read are gone: by retention, truncation, or a topic deleted or made again."""


def report(what: str, *, fail: bool, hint: str = HINT) -> None:
    """DataLoss, or a warning in the log where the query wants to go on."""
    if fail:
        raise DataLoss(f"{what}. {hint}")
    log.warning("data loss, going on as failOnDataLoss=false asks: %s", what)
