"""Sends frames to other workers. Frames that are sent in one turn of the event loop travel together."""

import asyncio
import logging
from collections.abc import Callable

from penstock.client.errors import ClientError
from penstock.clique.errors import OverLimit, Undecodable
from penstock.clique.pubsub import Delivery, PubSub
from penstock.clique.wire import (
    FRAMES_BYTES_MAX,
    Frame,
    decode_frames,
    encode_frame,
    join_frames,
    worker_subject,
)

log = logging.getLogger("penstock.clique")


class PeerLinks:
    """The frames from and to the other workers of a clique."""

    def __init__(
        self,
        pubsub: PubSub,
        clique: str,
        address: str,
        on_frame: Callable[[Frame], None],
        on_too_large: Callable[[Frame], None],
    ) -> None:
        """`on_too_large`: is told of a frame that the carrier does not take."""
        self._pubsub = pubsub
        self._clique = clique
        self._address = address
        self._on_frame = on_frame
        self._on_too_large = on_too_large
        self._outbox: dict[str, list[bytes]] = {}
        self._flushing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self._pubsub.subscribe(worker_subject(self._clique, self._address), self._received)

    def send(self, address: str, frame: Frame) -> None:
        """May be lost: those who need an answer send it again."""
        self._outbox.setdefault(address, []).append(encode_frame(frame))
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.get_running_loop().create_task(self._flush())

    async def flush(self) -> None:
        """Returns when everything has been handed to the carrier."""
        if self._flushing is not None:
            await self._flushing

    async def _flush(self) -> None:
        while self._outbox:
            address, frames = self._outbox.popitem()
            for part in _parts(frames, self._part_bytes_max):
                try:
                    await self._pubsub.publish(worker_subject(self._clique, address), join_frames(part))
                except OverLimit:
                    for frame in decode_frames(join_frames(part)):
                        self._on_too_large(frame)
                except ClientError as problem:
                    log.warning(
                        "%d frames for a worker are lost and will be sent again: %s", len(part), problem
                    )

    @property
    def _part_bytes_max(self) -> int:
        limit = self._pubsub.max_message_bytes
        return FRAMES_BYTES_MAX if limit is None else min(FRAMES_BYTES_MAX, limit // 2)

    async def _received(self, delivery: Delivery) -> None:
        try:
            frames = decode_frames(delivery.data)
        except Undecodable as problem:
            log.warning("%s: %s; it is ignored", delivery.subject, problem)
            return
        for frame in frames:
            self._on_frame(frame)


def _parts(frames: list[bytes], bytes_max: int) -> list[list[bytes]]:
    """As many messages as the limit of their size demands."""
    parts: list[list[bytes]] = [[]]
    size = 0
    for frame in frames:
        if parts[-1] and size + len(frame) > bytes_max:
            parts.append([])
            size = 0
        parts[-1].append(frame)
        size += len(frame)
    return parts
