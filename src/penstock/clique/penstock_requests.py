"""Requests and responses on Penstock.

A worker that owns the key of a request runs it itself, through the codec. Otherwise the request is a record of the
stream's topic, as a call of `penstock.client` is (calls.py): it expires with its timeout, and the response is a record
of the topic STREAM.replies."""

import asyncio
import logging
from typing import Final

from penstock.client.aio.client import AsyncClient
from penstock.client.calls import CALL_ID, ERROR, REPLY_TO
from penstock.client.errors import CallFailed, ClientError
from penstock.clique.chains import CHAIN_HEADER, Chain
from penstock.clique.clique_queue import CliqueJob
from penstock.clique.handlers import Handler
from penstock.clique.membership import Membership
from penstock.clique.message import Message
from penstock.clique.replies import encoded_result, error_of
from penstock.clique.runner import HandlerRunner
from penstock.clique.transport import Codecs
from penstock.clique.work import Failed, Handled, Outcome, Returned, Work
from penstock.ring.slots import slot_of

log = logging.getLogger("penstock.clique")

REPLY_SECONDS: Final = 10.0


async def ask_by_topic(
    client: AsyncClient, message: Message, value: bytes | None, chain: Chain | None, timeout_s: float
) -> bytes:
    """Raises CallFailed and TimeoutError."""
    headers = message.headers if chain is None else (*message.headers, (CHAIN_HEADER, str(chain)))
    reply = await client.call(message.stream, value, key=message.key, headers=headers, timeout=timeout_s)
    return reply.value or b""


class LocalRequests:
    """Requests of this worker to keys that it owns itself."""

    def __init__(self, membership: Membership, runner: HandlerRunner, codecs: Codecs) -> None:
        self._membership = membership
        self._runner = runner
        self._codecs = codecs

    async def ask(
        self, handler: Handler, message: Message, chain: Chain | None, deadline: float
    ) -> bytes | None:
        """The encoded response; None if this worker does not own the key, or loses it before the responder begins."""
        key = handler.key_of(message)
        if key is None:
            return None
        slot = slot_of(key)
        if not (self._membership.is_granted(slot) or self._runner.is_inside(key, chain)):
            return None
        settled: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._runner.submit(
            Work(
                handler,
                message,
                key=key,
                slot=slot,
                settle=lambda outcome: None if settled.done() else settled.set_result(outcome),
                is_request=True,
                chain=chain,
                deadline=deadline,
            )
        )
        return self._answer(message.stream, await settled)

    def _answer(self, stream: str, outcome: Outcome) -> bytes | None:
        match outcome:
            case Returned():
                return None
            case Handled(result=result):
                try:
                    return encoded_result(self._codecs.of(stream), stream, result)
                except Exception as unsuitable:
                    raise CallFailed(error_of(unsuitable)) from unsuitable
            case Failed(problem=problem):
                raise CallFailed(error_of(problem)) from problem
            case _:
                raise TimeoutError


async def respond(client: AsyncClient, job: CliqueJob, data: bytes, error: str | None) -> None:
    """If it fails, the sender of the request gets no response: the request is handled all the same."""
    headers = {CALL_ID: job.header(CALL_ID) or b""}
    if error is not None:
        headers[ERROR] = error.encode()
    topic = (job.header(REPLY_TO) or b"").decode(errors="replace")
    try:
        await client.publish(topic, data if error is None else None, headers=headers, timeout=REPLY_SECONDS)
    except ClientError as failed:
        log.warning("a response is lost: %s", failed)
