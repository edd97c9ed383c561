"""A node is an ordered list of parts. It starts them in order, stops them in reverse, and passes events to each.

To add a part: write a subclass of `Part`, and add it to the list in `node.py`, behind the parts that it needs.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from penstock.node.replication.partition import Partition

log = logging.getLogger("penstock.node")


class TopicChanges(NamedTuple):
    """The topics that committed metadata records have changed."""

    changed: tuple[str, ...]
    """Topics that were created, deleted or reconfigured."""
    vanished: tuple[str, ...] = ()
    """Topics that a snapshot no longer mentions: as far as this node can tell, they were deleted while it was away."""


class Part:
    """One subsystem of a node. Every method runs on the event loop, and does nothing unless overridden."""

    waits_for_others = False
    """Whether `start` waits for other nodes. This part and all parts behind it start in the background then."""

    async def start(self) -> None:
        """Called once, in the order of the list. Events may come before: opening one part changes roles. Not for a
        part that is made later (`late_parts`): it may not override this."""

    def role_changed(self, partition: "Partition") -> None:
        """This node began or ceased to lead a partition, or learned of another leader or term of it."""

    def metadata_changed(self, topics: TopicChanges) -> None:
        """A change of metadata is committed and applied."""

    async def stop(self) -> None:
        """Called once, in the reverse order, also if `start` was not called or has failed."""


class Parts(Part):
    """The list."""

    def __init__(self) -> None:
        self._parts: tuple[Part, ...] = ()
        self._background: asyncio.Task[None] | None = None

    def set(self, parts: Iterable[Part]) -> None:
        self._parts = tuple(parts)

    async def start(self) -> None:
        """Returns when all parts have started, or those in front of the first one that waits for other nodes."""
        in_front = next(
            (index for index, part in enumerate(self._parts) if part.waits_for_others), len(self._parts)
        )
        await _start(self._parts[:in_front])
        if in_front < len(self._parts):
            self._background = asyncio.get_running_loop().create_task(_start(self._parts[in_front:]))

    async def failed(self) -> None:
        """Returns never, unless it raises why a part that waits for other nodes could not start."""
        if self._background is not None:
            await asyncio.shield(self._background)
        await asyncio.get_running_loop().create_future()

    def role_changed(self, partition: "Partition") -> None:
        """A bug in one part is logged: the caller is in the middle of the partition's own work, such as a flush, and
        the other parts must hear of the role all the same."""
        for part in self._parts:
            try:
                part.role_changed(partition)
            except Exception:
                log.exception("%s: a bug in taking notice of its role: %r", partition.name, part)

    def metadata_changed(self, topics: TopicChanges) -> None:
        """Raises what a part raises: the metadata log then takes no part any more. A part that has missed a change, of
        an access rule for instance, would decide wrongly from here on."""
        for part in self._parts:
            part.metadata_changed(topics)

    async def stop(self) -> None:
        """Stops every part, and then raises the first error."""
        if self._background is not None:
            self._background.cancel()
            await asyncio.wait([self._background])
        problems: list[Exception] = []
        for part in reversed(self._parts):
            try:
                await part.stop()
            except Exception as problem:  # noqa: BLE001 - raised below
                problems.append(problem)
        if problems:
            raise problems[0]


async def _start(parts: Iterable[Part]) -> None:
    for part in parts:
        await part.start()
