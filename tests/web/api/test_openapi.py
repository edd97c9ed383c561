"""The served OpenAPI document: it is valid, it describes every path, and the responses conform to it."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from penstock import Broker
from penstock.config import GroupSettings, Limits

SOCKETS = ("/v1/push", "/v1/work", "/v1/browse")
"""WebSockets: OpenAPI cannot describe them."""

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
SMALL = Limits(max_partitions_per_topic=50)
"""Examples should not create thousands of partitions. The transaction topic has 50."""

KNOWN = "orders"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A separate broker, because the examples delete what they find."""
    with Broker(limits=SMALL, groups=GroupSettings(offsets_topic_partitions=4)) as broker:
        yield broker.http_url


@pytest.fixture(scope="module")
def document(url: str) -> Any:
    return httpx.get(f"{url}/v1/openapi.json").json()


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_every_response_to_generated_requests_conforms_to_the_document(
    url: str, document: Any, mode: GenerationMode
) -> None:
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=url)
    operations = [found.ok() for found in schema.get_all_operations()]
    answered = sum((call_with_examples(operation, mode, url) for operation in operations), Counter())
    wanted = 400 if mode is GenerationMode.NEGATIVE else 200
    assert answered[wanted] >= 15, answered


def call_with_examples(operation: APIOperation, mode: GenerationMode, url: str) -> Counter[int]:
    """How often each status was answered."""
    statuses: Counter[int] = Counter()
    if mode is GenerationMode.NEGATIVE and not (operation.definition.raw["parameters"] or operation.body):
        return statuses  # no invalid example exists
    httpx.post(f"{url}/v1/topics", json={"name": KNOWN, "partitions": 2})

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=3,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        # Few values of a path are invalid, and a busy machine is slow.
        suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
    )
    def call(case: Case) -> None:
        if mode is GenerationMode.POSITIVE and statuses.total() % 3:
            use_existing_names(case)
        if isinstance(case.query, dict) and isinstance(case.query.get("wait_ms"), int):
            case.query["wait_ms"] = min(case.query["wait_ms"], 0)
        if isinstance(case.body, dict) and isinstance(case.body.get("wait_ms"), int):
            case.body["wait_ms"] = min(case.body["wait_ms"], 1)
        statuses[case.call_and_validate(checks=CHECKS).status_code] += 1

    call()
    return statuses


def use_existing_names(case: Case) -> None:
    """Examples find a topic's name by chance only."""
    known = {"topic": KNOWN, "partition": 1}
    for name in case.path_parameters or {}:
        case.path_parameters[name] = known.get(name, case.path_parameters[name])
    if isinstance(case.body, dict) and "topic" in case.body:
        case.body["topic"] = KNOWN


def test_the_document_describes_every_served_path(url: str, document: Any) -> None:
    index = httpx.get(f"{url}/v1").json()
    told = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    listed = {(row["method"], row["path"]) for row in index["paths"]}
    assert told == {row for row in listed if row[1] not in SOCKETS}
    for _, path in listed - told:
        assert httpx.get(f"{url}{path}").status_code == 426


def test_every_schema_that_the_document_refers_to_is_in_it(document: Any) -> None:
    referred = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert referred - set(document["components"]["schemas"]) == set()
    assert len(referred) >= 20


def test_the_document_says_which_refusals_tell_when_to_try_again(document: Any) -> None:
    for item in document["paths"].values():
        for operation in item.values():
            for status, response in operation["responses"].items():
                assert ("Retry-After" in response.get("headers", {})) == (status in ("429", "503"))
    publish = document["paths"]["/v1/topics/{topic}/records"]["post"]
    assert {"429", "503"} <= publish["responses"].keys()


def test_the_document_says_how_to_log_in(document: Any) -> None:
    schemes = document["components"]["securitySchemes"]
    assert sorted(one["scheme"] for one in schemes.values()) == ["basic", "bearer"]
    assert {name for way in document["security"] for name in way} == set(schemes)
    assert {} in document["security"], "login is not required everywhere"


def test_every_operation_and_every_field_has_a_description(document: Any) -> None:
    names = [operation["operationId"] for item in document["paths"].values() for operation in item.values()]
    assert len(names) == len(set(names)) >= 14
    read = document["paths"]["/v1/topics/{topic}/partitions/{partition}/records"]["get"]
    assert {row["name"]: row["in"] for row in read["parameters"]} == {
        "topic": "path",
        "partition": "path",
        "offset": "query",
        "timestamp_ms": "query",
        "max_records": "query",
        "max_bytes": "query",
        "wait_ms": "query",
        "encoding": "query",
        "isolation": "query",
    }
    refusals = {"400", "401", "403", "404", "413", "416", "421", "422", "429", "503"}
    assert set(read["responses"]) == {"200"} | refusals
    assert document["components"]["schemas"]["RecordIn"]["additionalProperties"] is False
