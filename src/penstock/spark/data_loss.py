"""Records that a query should have read and that are no longer there: said aloud, or an end of the query."""

import logging

from penstock.errors import PenstockError

log = logging.getLogger("penstock.spark")

HINT = (
    "Raise the topic's retention, or run the query more often. To go on with what is left, and have each gap "
    "logged, set failOnDataLoss=false"
)


class DataLoss(PenstockError):
    """Offsets that were to be read are gone: by retention, truncation, or a topic deleted or made again."""


def report(what: str, *, fail: bool) -> None:
    """DataLoss, or a warning in the log where the query wants to go on."""
    if fail:
        raise DataLoss(f"{what}. {HINT}")
    log.warning("data loss, going on as failOnDataLoss=false asks: %s", what)
