"""The example of docs/push.md works as printed."""

import re
import subprocess
import sys
from pathlib import Path

from penstock import Broker
from tests.web.pushing import committed, create, produce, push_url

PAGE = Path(__file__).parents[2] / "docs" / "push.md"


def test_the_python_example_prints_messages_and_acks_them() -> None:
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    with Broker() as broker:
        create(broker.bootstrap_servers, "orders")
        produce(broker.bootstrap_servers, "orders", ["one", "two", "three"])
        program = found.group(1).replace("ws://127.0.0.1:8080/v1/push", push_url(broker.http_url))
        with subprocess.Popen(
            [sys.executable, "-u", "-c", program], stdout=subprocess.PIPE, text=True
        ) as running:
            assert running.stdout is not None
            try:
                lines = [running.stdout.readline().strip() for _ in range(3)]
                assert lines == ["orders 0 0 one", "orders 0 1 two", "orders 0 2 three"]
                while committed(broker.bootstrap_servers, "billing", "orders") != 3:
                    assert running.poll() is None
            finally:
                running.kill()
