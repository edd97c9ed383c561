"""Administration for programs with an event loop: each call is `Admin`'s, in a thread."""

import asyncio
from collections.abc import Mapping, Sequence

from penstock.client.admin import Admin, GroupInfo, QueueInfo, TopicInfo
from penstock.client.amounts import Seconds
from penstock.client.dead_letters import DeadLetter


class AsyncAdmin:
    """What an asynchronous client has as `client.admin`. `Admin` says what each call does."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        exist_ok: bool = False,
    ) -> bool:
        """See `Admin.create_topic`."""
        return await asyncio.to_thread(
            self._admin.create_topic,
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=configs,
            exist_ok=exist_ok,
        )

    async def delete_topic(self, name: str, *, missing_ok: bool = False) -> bool:
        """See `Admin.delete_topic`."""
        return await asyncio.to_thread(self._admin.delete_topic, name, missing_ok=missing_ok)

    async def topics(self, *, internal: bool = False) -> list[TopicInfo]:
        """See `Admin.topics`."""
        return await asyncio.to_thread(self._admin.topics, internal=internal)

    async def topic_configs(self, name: str) -> dict[str, str]:
        """See `Admin.topic_configs`."""
        return await asyncio.to_thread(self._admin.topic_configs, name)

    async def alter_topic(self, name: str, configs: Mapping[str, str | None]) -> None:
        """See `Admin.alter_topic`."""
        await asyncio.to_thread(self._admin.alter_topic, name, configs)

    async def create_queue(
        self,
        group: str,
        *,
        topic: str | None = None,
        read_old: bool = True,
        lease: Seconds | None = None,
        max_deliveries: int | None = None,
        key_ordered: bool | None = None,
        exclusive: bool | None = None,
        dead_letter_topic: str | None = None,
        backoff: Seconds | None = None,
        max_backoff: Seconds | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> bool:
        """See `Admin.create_queue`."""
        return await asyncio.to_thread(
            self._admin.create_queue,
            group,
            topic=topic,
            read_old=read_old,
            lease=lease,
            max_deliveries=max_deliveries,
            key_ordered=key_ordered,
            exclusive=exclusive,
            dead_letter_topic=dead_letter_topic,
            backoff=backoff,
            max_backoff=max_backoff,
            configs=configs,
        )

    async def delete_queue(self, group: str, *, missing_ok: bool = False) -> bool:
        """See `Admin.delete_queue`."""
        return await asyncio.to_thread(self._admin.delete_queue, group, missing_ok=missing_ok)

    async def purge_queue(self, group: str, *, topics: Sequence[str] | None = None) -> int:
        """See `Admin.purge_queue`."""
        return await asyncio.to_thread(self._admin.purge_queue, group, topics=topics)

    async def dead_letters(self, group: str, *, limit: int = 1_000) -> list[DeadLetter]:
        """See `Admin.dead_letters`."""
        return await asyncio.to_thread(self._admin.dead_letters, group, limit=limit)

    async def send_back(self, group: str, letters: Sequence[DeadLetter] | None = None) -> int:
        """See `Admin.send_back`."""
        return await asyncio.to_thread(self._admin.send_back, group, letters)

    async def queue_configs(self, group: str) -> dict[str, str]:
        """See `Admin.queue_configs`."""
        return await asyncio.to_thread(self._admin.queue_configs, group)

    async def alter_queue(self, group: str, configs: Mapping[str, str | None]) -> None:
        """See `Admin.alter_queue`."""
        await asyncio.to_thread(self._admin.alter_queue, group, configs)

    async def queues(self) -> list[str]:
        """See `Admin.queues`."""
        return await asyncio.to_thread(self._admin.queues)

    async def queue(self, group: str) -> QueueInfo:
        """See `Admin.queue`."""
        return await asyncio.to_thread(self._admin.queue, group)

    async def groups(self) -> list[str]:
        """See `Admin.groups`."""
        return await asyncio.to_thread(self._admin.groups)

    async def group(self, name: str) -> GroupInfo:
        """See `Admin.group`."""
        return await asyncio.to_thread(self._admin.group, name)

    async def delete_group(self, name: str, *, missing_ok: bool = False) -> bool:
        """See `Admin.delete_group`."""
        return await asyncio.to_thread(self._admin.delete_group, name, missing_ok=missing_ok)
