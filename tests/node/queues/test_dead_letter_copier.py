"""Dead letters are copied until it works, also after a bug."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.errors import StorageError
from penstock.node.queues.dead_letter_copier import DeadLetterCopier
from penstock.node.scheduling import retry_backoff
from penstock.queue.values import DeadLetterRange
from penstock.types import TopicPartition


@pytest.mark.parametrize(
    ("trouble", "said"), [(StorageError("no space"), "no space"), (KeyError(), "a bug in")]
)
def test_a_dead_letter_is_copied_again_after_a_failure_and_after_a_bug(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, trouble: Exception, said: str
) -> None:
    monkeypatch.setattr(retry_backoff, "FIRST_SECONDS", 0.001)
    letters = [cast(DeadLetterRange, SimpleNamespace(first=at, last=at)) for at in (3, 7)]
    copied: list[int] = []
    tries: list[int] = []

    async def write(letter: DeadLetterRange) -> None:
        tries.append(letter.first)
        if len(tries) == 1:
            raise trouble

    core: Any = SimpleNamespace(dead_letters_copied=lambda first, last: copied.append(first))
    stats: Any = SimpleNamespace(count_dead=lambda letter: None)
    copier = DeadLetterCopier(TopicPartition("orders", 0), stats, write)
    asyncio.run(copier.copy_all(core, letters, lambda: True))
    assert (tries, copied) == ([3, 3, 7], [3, 7])
    assert said in caplog.text
