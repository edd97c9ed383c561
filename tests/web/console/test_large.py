"""A topic of a million messages: a scan shows how far it is, and stops at once when it is told to."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from playwright.sync_api import expect

from penstock import Broker
from tests.web.console.conftest import OpenPage

MESSAGES = 1_000_000


@pytest.fixture(scope="module")
def large() -> Iterator[Broker]:
    with Broker() as broker:
        producer = Producer(
            {**broker.client_settings(), "linger.ms": 50, "queue.buffering.max.messages": 200_000}
        )
        for number in range(MESSAGES):
            value = b'{"number": %d}' % number
            while True:
                try:
                    producer.produce("large", value)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush()
        yield broker


@pytest.mark.long
def test_a_needle_among_a_million_messages_is_found(large: Broker, open_page: OpenPage) -> None:
    page = open_page("topics/large/messages?field=number&field_value=777", at=large)
    expect(page.get_by_text(f"1 message, {MESSAGES:,} of {MESSAGES:,} scanned")).to_be_visible(
        timeout=180_000
    )
    expect(page.get_by_role("cell", name='{"number": 777}')).to_be_visible()


@pytest.mark.long
def test_a_scan_is_stopped(large: Broker, open_page: OpenPage) -> None:
    page = open_page("topics/large/messages?value=nowhere", at=large)
    expect(page.locator("progress")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("stopped")).to_be_visible()
    expect(page.get_by_role("button", name="Stop")).not_to_be_visible()
