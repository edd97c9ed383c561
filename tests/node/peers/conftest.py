"""Tests here may be coroutines: each runs on a loop of its own, as a broker does, and its nodes are closed after it."""

import asyncio
import inspect
from typing import Any

import pytest
import uvloop

from .peer_nodes import PeerNodes


@pytest.fixture
def peer_nodes() -> PeerNodes:
    return PeerNodes()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in wanted}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(pyfuncitem.obj, arguments))
    return True


async def _run(test: Any, arguments: dict[str, Any]) -> None:
    try:
        await test(**arguments)
    finally:
        if "peer_nodes" in arguments:
            await arguments["peer_nodes"].close()
