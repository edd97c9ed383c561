"""The rows of GET /v1/queues. They are made once for all callers that ask at the same time; a caller that may not
describe all topics of a queue gets a row without the figures of the others."""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from penstock.node.calls.messages.queues import QueueDescription
from penstock.node.queues.overview import ConsumerList, QueueReport
from penstock.web.api.dead_letters import HANDLED_QUEUE
from penstock.web.api.queue_shapes import QueueSummary


class ListedQueue(NamedTuple):
    """One queue with all of its topics."""

    summary: QueueSummary
    descriptions: Sequence[QueueDescription]
    consumers: ConsumerList

    def row(self, topics: Collection[str]) -> QueueSummary:
        """The queue as a caller sees it that may describe these topics."""
        if all(topic in topics for topic in self.summary.topics):
            return self.summary
        shown = [description for description in self.descriptions if description.topic in topics]
        consumers = sum(any(topic in topics for topic, _ in one.partitions) for one in self.consumers.listed)
        return _summary(self.summary.queue, shown, consumers)


def listed_queues(report: QueueReport) -> tuple[list[ListedQueue], list[QueueDescription]]:
    """By name; and apart from them, the queue of the broker itself. May run in a thread."""
    found: dict[str, list[QueueDescription]] = {}
    for description in report.descriptions:
        found.setdefault(description.group_id, []).append(description)
    handled = found.pop(HANDLED_QUEUE, [])
    return [_listed(name, found[name], report.consumers_of(name)) for name in sorted(found)], handled


def _listed(queue: str, descriptions: Sequence[QueueDescription], consumers: ConsumerList) -> ListedQueue:
    return ListedQueue(_summary(queue, descriptions, consumers.total), descriptions, consumers)


def _summary(queue: str, descriptions: Sequence[QueueDescription], consumers: int) -> QueueSummary:
    rates = [description.rate for description in descriptions if description.rate is not None]
    return QueueSummary(
        queue=queue,
        topics=sorted({description.topic for description in descriptions}),
        partitions=len(descriptions),
        undone=_sum(description.undone for description in descriptions),
        available=_sum(description.available for description in descriptions),
        leased=_sum(description.leased for description in descriptions),
        deferred=_sum(description.deferred for description in descriptions),
        consumers=consumers,
        rate=round(sum(rates), 3) if rates else None,
        end_offset=_sum(description.end_offset for description in descriptions),
    )


def _sum(numbers: Iterable[int | None]) -> int | None:
    """The sum of the known numbers; None if none is known."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None
