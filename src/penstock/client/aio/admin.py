"""Administration for programs with an event loop: each method of `Admin`, run in a thread."""

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from penstock.client.admin import Admin
from penstock.client.aio.threads import call_in_thread

P = ParamSpec("P")
R = TypeVar("R")


def _in_thread(
    method: Callable[Concatenate[Admin, P], R],
) -> "Callable[Concatenate[AsyncAdmin, P], Coroutine[Any, Any, R]]":
    """The method of `Admin` with its arguments and its docstring, to be awaited."""

    @functools.wraps(method)
    async def call(self: "AsyncAdmin", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await call_in_thread(functools.partial(method, self._admin, *args, **kwargs))

    return call


class AsyncAdmin:
    """An asyncio client's `client.admin`."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    create_topic = _in_thread(Admin.create_topic)
    delete_topic = _in_thread(Admin.delete_topic)
    topics = _in_thread(Admin.topics)
    topic_ends = _in_thread(Admin.topic_ends)
    topic_configs = _in_thread(Admin.topic_configs)
    alter_topic = _in_thread(Admin.alter_topic)

    create_queue = _in_thread(Admin.create_queue)
    delete_queue = _in_thread(Admin.delete_queue)
    purge_queue = _in_thread(Admin.purge_queue)
    dead_letters = _in_thread(Admin.dead_letters)
    send_back = _in_thread(Admin.send_back)
    queue_configs = _in_thread(Admin.queue_configs)
    alter_queue = _in_thread(Admin.alter_queue)
    queues = _in_thread(Admin.queues)
    queue = _in_thread(Admin.queue)

    groups = _in_thread(Admin.groups)
    group = _in_thread(Admin.group)
    delete_group = _in_thread(Admin.delete_group)
