"""Log records of the test itself."""

import logging
import threading

import pytest


def own_records(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Those of this thread. Brokers and clients of other tests log, too, in threads of their own."""
    return [one for one in caplog.records if one.thread == threading.get_ident()]
