"""Tests here may be coroutines: each runs on a loop of its own."""

import asyncio
import inspect

import pytest

PATIENCE_SECONDS = 60
"""What a test waits for comes at once if it comes at all, unless the machine is busy."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    test = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted})
    asyncio.run(asyncio.wait_for(test, PATIENCE_SECONDS))
    return True
