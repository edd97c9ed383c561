"""docs/compatibility.md has every API with its versions, and the APIs have the versions of Kafka 4.4."""

import pathlib
import re

from penstock.kafka.handlers.registry import advertised
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.index import APIS

PAGE = pathlib.Path(__file__).parents[3] / "docs/compatibility.md"
FEWER_THAN_KAFKA = {ApiKey.INIT_PRODUCER_ID}
"""The page says why."""


def test_the_page_lists_the_versions_of_every_api() -> None:
    section = PAGE.read_text().partition("## Versions of the protocol")[2].partition("\n## ")[0]
    found = re.findall(r"`(\w+)` (\d+)-(\d+)[,|\s]", section.partition("|---|")[2])
    listed = [(name, int(low), int(high)) for name, low, high in found]
    offered = [(APIS[row.api_key].name, row.min_version, row.max_version) for row in advertised()]
    assert sorted(listed) == sorted(offered)


def test_apis_have_all_versions_of_kafka() -> None:
    for row in advertised():
        api = APIS[row.api_key]
        if row.api_key not in FEWER_THAN_KAFKA:
            assert (row.min_version, row.max_version) == (api.first, api.last), api.name
