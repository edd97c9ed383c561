"""Settles forwarded messages when their handlers have ended: acknowledgements, responses and dead letters."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from penstock.client.errors import ClientError
from penstock.clique.dead_letters import DeadMessage
from penstock.clique.errors import Closed, OverLimit
from penstock.clique.items import Item
from penstock.clique.pubsub import PubSub
from penstock.clique.replies import PendingRequests, encoded_result, error_of
from penstock.clique.transport import Codecs
from penstock.clique.wire import CALL_HEADER, ERROR_HEADER
from penstock.clique.work import Failed, Handled, Outcome

log = logging.getLogger("penstock.clique")

DEAD_LETTER_RETRY_SECONDS: Final = 1.0
"""Between attempts to publish a dead letter. Its message is not acknowledged before."""

StartTask = Callable[[Coroutine[Any, Any, None]], "asyncio.Future[Any]"]


class Outcomes:
    """Tells the senders of requests and the sources of messages."""

    def __init__(
        self,
        pubsub: PubSub,
        codecs: Codecs,
        requests: PendingRequests,
        reply_subject: str,
        start_task: StartTask,
        *,
        clique: str,
        worker: str,
        keeps_dead_letters: bool,
    ) -> None:
        """`keeps_dead_letters`: whether dead letters are published, or only logged."""
        self._pubsub = pubsub
        self._codecs = codecs
        self._requests = requests
        self._reply_subject = reply_subject
        self._start_task = start_task
        self._clique = clique
        self._worker = worker
        self._keeps_dead_letters = keeps_dead_letters

    def conclude(self, item: Item, outcome: Outcome) -> "asyncio.Future[Any] | None":
        """The item is done when the future is, if there is one."""
        if item.is_request:
            item.done()
            return self._respond(item, outcome)
        if isinstance(outcome, Failed):
            key, headers = item.message.key, item.headers
            letter = DeadMessage(item.stream, item.data, key, headers, outcome.attempts, outcome.problem)
            return self.write_dead_letter(letter, item.done)
        item.done()
        return None

    # --- responses

    def _respond(self, item: Item, outcome: Outcome) -> "asyncio.Future[Any] | None":
        data, error = b"", None
        if isinstance(outcome, Handled):
            try:
                data = encoded_result(self._codecs.of(item.stream), item.stream, outcome.result)
            except Exception as unsuitable:  # noqa: BLE001 - of the application's responder and codec
                error = error_of(unsuitable)
        elif isinstance(outcome, Failed):
            error = error_of(outcome.problem)
        else:
            return None  # it has expired: its sender does not wait any more
        return self.respond(item.reply or "", item.headers, data, error)

    def respond(
        self, reply: str, headers: Mapping[str, str], data: bytes, error: str | None
    ) -> "asyncio.Future[Any] | None":
        """The response to a request that had these headers."""
        request_id = headers.get(CALL_HEADER, "")
        if reply == self._reply_subject:
            self._requests.respond(request_id, data, error)
            return None
        made = {CALL_HEADER: request_id} if request_id else {}
        if error is not None:
            made[ERROR_HEADER] = error
        return self._start_task(self._send_response(reply, data, made))

    async def _send_response(self, reply: str, data: bytes, headers: dict[str, str]) -> None:
        try:
            await self._pubsub.publish(reply, data, headers)
        except ClientError as problem:
            log.warning("a response is lost: %s", problem)

    # --- dead letters

    def write_dead_letter(
        self, letter: DeadMessage, done: Callable[[], None]
    ) -> "asyncio.Future[Any] | None":
        """`done` is called when the letter is published, or there is none to publish."""
        log.error("a message of %s is given up: %s", letter.stream, error_of(letter.problem))
        if not self._keeps_dead_letters:
            done()
            return None
        return self._start_task(self._publish_dead_letter(letter, done))

    async def _publish_dead_letter(self, letter: DeadMessage, done: Callable[[], None]) -> None:
        stream, data = letter.encode(clique=self._clique, worker=self._worker)
        while True:
            try:
                await self._pubsub.publish(stream, data)
            except Closed:
                return  # the message was not acknowledged
            except OverLimit as problem:
                log.error("a dead letter of %s is too large, and dropped: %s", letter.stream, problem)
                done()
                return
            except ClientError as problem:
                log.warning("a dead letter of %s could not be published: %s", letter.stream, problem)
                await asyncio.sleep(DEAD_LETTER_RETRY_SECONDS)
            else:
                done()
                return
