"""Frames of workers: the work that one of them causes is bounded before it begins."""

from penstock.node.queues.failures import MAX_FAILURES
from penstock.web.work_frames import FailedRange, Settle


def reasons(*ranges: tuple[int, int]) -> list[int]:
    """The offsets that get a reason."""
    failures = [FailedRange(first=first, last=last, error_text="no") for first, last in ranges]
    return sorted(Settle(number=1, topic="t", partition=0, failures=failures).reasons())


def test_reasons_are_kept_for_the_first_offsets() -> None:
    assert reasons((5, 6), (9, 9)) == [5, 6, 9]
    assert reasons((0, 10), (11, 900_000)) == list(range(MAX_FAILURES))


def test_ranges_that_repeat_offsets_count_each_time() -> None:
    """Twenty thousand times the same five thousand offsets would hold the event loop for seconds."""
    most = (0, MAX_FAILURES - 2)
    assert reasons(*[most] * 20_000, (MAX_FAILURES, MAX_FAILURES)) == list(range(MAX_FAILURES - 1))
