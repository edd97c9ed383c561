"""Common to the drivers of sessions (thread_driver.py, aio/driver.py): everything that does not wait."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from websockets.exceptions import WebSocketException

from penstock.client.connection_loss import CONNECT_SETTINGS, connection_loss
from penstock.client.errors import ClientError, Closed
from penstock.client.forks import ForkGuard
from penstock.client.http_nodes import HttpNodes
from penstock.client.session import ConnectionLoss, Effect, Item, Promise, Resolve, Session

log = logging.getLogger("penstock.client")

S = TypeVar("S", bound=Promise)
"""The result of `ack`: a Settlement of a blocking or of an asyncio client."""
Connection = TypeVar("Connection")
"""A WebSocket of the `websockets` package, blocking or asyncio."""


class SessionDriver(ABC, Generic[Item, S, Connection]):
    """Runs a session until it ends or is closed."""

    def __init__(self, session: Session[Item], nodes: HttpNodes, name: str) -> None:
        self.session = session
        self._nodes = nodes
        self._name = name
        self._sockets: dict[int, Connection] = {}
        self._is_draining = False
        self._guard = ForkGuard()

    @abstractmethod
    def settlement(self) -> S:
        """A new promise that callers can wait for."""

    @abstractmethod
    def tell(self, event: Callable[[float], None]) -> None:
        """Calls `event` with the time. The driver then carries out the session's effects."""

    @abstractmethod
    def drain(self) -> None:
        """Makes `receive` return nothing from now on; jobs in hand can still be settled."""

    def ask(self, request: Callable[[S, float], None]) -> S:
        """Hands a request to the session, with the promise that its answer resolves."""
        settlement = self.settlement()
        self.tell(lambda now: request(settlement, now))
        return settlement

    @property
    def _is_waiting_for_node(self) -> bool:
        return not (self.session.is_served or self.session.ended is not None or self._is_draining)

    @property
    def _is_finished(self) -> bool:
        return self.session.ended is not None and self._is_draining

    def _check_ended(self) -> None:
        """Raises the error that ended a draining session, unless the caller has closed it."""
        if self.session.ended is not None and not isinstance(self.session.ended, Closed):
            raise self.session.ended

    def _take_effects(self, now: float) -> list[Effect]:
        """Resolves the promises; the caller carries out the other effects."""
        effects = self.session.take_effects(now)
        for effect in effects:
            if isinstance(effect, Resolve):
                for promise in effect.promises:
                    promise.resolve(effect.error)
        return effects

    @contextmanager
    def _reporting_failed_search(self) -> Iterator[None]:
        """The session searches again, perhaps for long: the log says why."""
        try:
            yield
        except ClientError as error:
            problem = error
            log.warning("%s: %s", self._name, problem)
            self.tell(lambda now: self.session.not_found(problem, now))

    @contextmanager
    def _reporting_loss(self, connection_id: int, url: str) -> Iterator[None]:
        """Around one connection: tells the session why it has ended."""
        try:
            yield
            return
        except (OSError, WebSocketException, ValueError) as problem:
            loss = self._checked(connection_loss(problem, url))
        except ClientError as error:  # this client does not connect there
            loss = ConnectionLoss(str(error), denied=error)
        except Exception as bug:  # noqa: BLE001 - callers get it
            self._end_after(bug)
            return
        finally:
            self._sockets.pop(connection_id, None)
        log.debug("%s: %s: %s", self._name, url, loss.reason)
        self.tell(lambda now: self.session.disconnected(connection_id, loss, now))

    def _checked(self, loss: ConnectionLoss) -> ConnectionLoss:
        """Without a redirect that must not be followed. The session then tries the other nodes."""
        if loss.redirect is None or self._nodes.may_redirect_to(loss.redirect):
            return loss
        return ConnectionLoss(f"{loss.reason}, which is no address that the nodes announce")

    def _connect_settings(self, url: str) -> dict[str, Any]:
        """For `connect` of both drivers."""
        settings = {**CONNECT_SETTINGS, "additional_headers": self._nodes.headers(url)}
        context = self._nodes.context(url)
        return settings if context is None else {**settings, "ssl": context}

    def _end_after(self, bug: Exception) -> None:
        """Callers get the error. Without this they would wait for ever, with leases that no other consumer gets."""
        if self.session.ended is not None:
            raise bug
        log.error("%s: a bug in penstock.client", self._name, exc_info=bug)
        failure = ClientError(f"a bug in penstock.client: {bug!r}")
        self.tell(lambda now: self.session.fail(failure))
