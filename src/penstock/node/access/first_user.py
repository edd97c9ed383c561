"""The first user of a cluster that requires login: `admin`, with a password that is shown once.

Without it, there would be no user that could log in and make others. The controller makes it when login is required for
the first time, and the node on which that happens shows the password. Users that were made before stay as they are. A
program that embeds a broker may name the first users and their passwords itself.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping

from penstock.cluster import UserChanged, access_decisions
from penstock.errors import PenstockError
from penstock.node.access.new_credentials import new_credentials
from penstock.node.metadata.metadata_log import MetadataLog
from penstock.node.parts import Part
from penstock.node.scheduling.logged_bugs import logged_bugs
from penstock.node.scheduling.retry_backoff import RetryBackoff

log = logging.getLogger("penstock.node")

FIRST_USER = "admin"
PASSWORD_BYTES = 18
SECRET_BYTES = 32
LOOK_SECONDS = 1.0
"""How often a node looks whether the cluster has users, or whether it decides and is to make them."""

Show = Callable[[str, str], None]
"""Called with the name and the password."""


class FirstUser(Part):
    """Waits until the cluster has a user, and makes it where this node decides."""

    def __init__(self, metadata: MetadataLog, passwords: Mapping[str, str], show: Show) -> None:
        """`passwords`: of users that are to be made beside `admin`, or its own."""
        self._metadata = metadata
        self._passwords = dict(passwords)
        self._show = show
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """A node without a cluster has its user when this returns."""
        if self._metadata.is_controller:
            await self._make()
        else:
            self._task = asyncio.get_running_loop().create_task(self._wait())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _wait(self) -> None:
        backoff = RetryBackoff("the first user is not made yet", log)
        while not self._metadata.state.access.login_secret:
            seconds = LOOK_SECONDS
            if self._metadata.is_controller:
                with logged_bugs("making the first user"):
                    try:
                        await self._make()
                    except PenstockError as trouble:
                        seconds = backoff.after(trouble)
            await asyncio.sleep(seconds)

    async def _make(self) -> None:
        if self._metadata.state.access.login_secret:
            return
        password = secrets.token_urlsafe(PASSWORD_BYTES)
        passwords = {FIRST_USER: password, **self._passwords}
        users = {user: new_credentials(text) for user, text in passwords.items()}
        secret = secrets.token_bytes(SECRET_BYTES)
        records = await self._metadata.change(
            lambda state: access_decisions.create_first_users(state, users, secret)
        )
        if any(isinstance(record, UserChanged) and record.user == FIRST_USER for record in records):
            self._show(FIRST_USER, passwords[FIRST_USER])
