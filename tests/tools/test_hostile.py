"""`make hostile` itself: it runs attacks, and it fails when a node does not hold."""

import io
import json
import socket
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest

from penstock.kafka.wire import ApiKey, encode_request, join, request_class
from penstock.kafka.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tools.hostile import __main__ as hostile
from tools.hostile import canary, report, run
from tools.hostile.attack import Attack
from tools.hostile.generator.kafka_requests import KINDS
from tools.hostile.generator.kafka_values import MessageMaker
from tools.hostile.generator.table import SMALL, SURFACES, create_victims
from tools.hostile.log_lines import find_bugs
from tools.hostile.probe import REQUEST
from tools.hostile.scenario import Scenario
from tools.hostile.scenarios import security
from tools.hostile.scenarios.connections import commit_offsets_for_ever
from tools.hostile.scenarios.table import SCENARIOS
from tools.hostile.scenarios.websockets import go_away_while_told_why
from tools.hostile.setups import Setup

ATTACKS = "12"


def run_harness(*arguments: str, attack: Callable[[Attack], None], **more: Any) -> tuple[int, Any]:
    """The exit code, and the outcome as the JSON has it."""
    scenario = Scenario(name="planted", does="a test", attack=attack, **more)
    printed = io.TextIOWrapper(io.BytesIO(), write_through=True)
    with redirect_stdout(printed):
        code = hostile.main([*arguments, "--json"], [scenario])
    told = json.loads(printed.buffer.getvalue())  # type: ignore[attr-defined]
    return code, told["scenarios"][0]


def test_two_scenarios_and_attacks_of_every_surface_of_a_node_hold() -> None:
    def attack_all(attack: Attack) -> None:
        commit_offsets_for_ever(attack)
        go_away_while_told_why(attack)
        for surface in SURFACES:
            if surface.nodes == 1:
                surface.attack(attack)

    code, outcome = run_harness(
        "--count", ATTACKS, attack=attack_all, prepare=create_victims, flags=SMALL, seconds=300.0
    )
    assert outcome["problems"] == []
    assert code == 0
    assert outcome["acked"] > 0
    assert outcome["lost"] == 0
    assert outcome["memory_peak_bytes"] >= outcome["memory_before_bytes"] > 0
    assert outcome["stall_seconds"] > 0


@pytest.mark.long
def test_a_node_with_logins_holds_beside_guesses_and_unfinished_logins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = {"UNFINISHED_LOGINS": 40, "WRONG_PASSWORDS": 20, "AT_ONCE": 10, "HELD_SECONDS": 0.5}
    for name, value in few.items():
        monkeypatch.setattr(security, name, value)

    def attack_all(attack: Attack) -> None:
        security.stop_in_logins(attack)
        security.guess_passwords(attack)

    code, outcome = run_harness(attack=attack_all, setup=Setup.LOGIN)
    assert outcome["problems"] == []
    assert code == 0
    assert outcome["acked"] > 0


@pytest.mark.long
def test_nodes_with_tls_hold_beside_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "STRANGERS", 18)
    code, outcome = run_harness(attack=security.knock_as_strangers, setup=Setup.MUTUAL_TLS, nodes=3)
    assert (code, outcome["problems"]) == (0, [])


def test_a_node_that_dies_fails_the_run() -> None:
    code, outcome = run_harness(attack=lambda attack: attack.node.node.kill())
    assert code == 1
    assert any("died" in problem for problem in outcome["problems"])


def test_lost_records_connections_left_over_and_logged_bugs_fail_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "SETTLE_SECONDS", 0.5)
    left_over: list[socket.socket] = []

    def harm(attack: Attack) -> None:
        """An operator who deletes the canary's records, a client that keeps its connections, a bug in the broker."""
        partitions = [
            DeleteRecordsPartition(partition_index=at, offset=-1) for at in range(canary.PARTITIONS)
        ]
        topics = [DeleteRecordsTopic(name=canary.TOPIC, partitions=partitions)]
        with attack.kafka() as client:
            client.call(ApiKey.DELETE_RECORDS, 2, DeleteRecordsRequest(topics=topics, timeout_ms=10_000))
        where = "127.0.0.1", attack.node.node.kafka_port
        left_over.extend(socket.create_connection(where) for _ in range(run.DESCRIPTORS_KEPT + 3))
        for one in left_over:  # the system takes connections before the node does
            one.settimeout(60)
            one.sendall(REQUEST)
            assert one.recv(4)
        attack.node.node.lines.append("ERROR penstock.kafka: API 3 v9: the broker has a bug\n")

    try:
        code, outcome = run_harness(attack=harm)
    finally:
        for one in left_over:
            one.close()
    assert code == 1
    for part in ("acked records are lost", "leaked", "the broker has a bug"):
        assert any(part in problem for problem in outcome["problems"]), outcome["problems"]


def test_a_scenario_that_takes_more_memory_than_it_may_fails_the_run() -> None:
    code, outcome = run_harness(attack=lambda attack: None, memory_bytes=-(1 << 40))
    assert code == 1
    assert any("its limits allow" in problem for problem in outcome["problems"])


def test_a_report_of_a_bug_has_the_line_the_error_and_the_place() -> None:
    lines = [
        "2026-11-17 11:16:11,977 ERROR penstock.kafka: API 20 v5 of 127.0.0.1:38790: the broker has a bug\n",
        "Traceback (most recent call last):\n",
        '  File "/src/handlers.py", line 1, in outer\n',
        "    inner()\n",
        '  File "/src/encoder.py", line 257, in inner\n',
        "    raise ValueError\n",
        "ValueError: a string\n",
        "2026-11-17 11:16:11,978 INFO penstock.kafka: all is well\n",
        "2026-11-17 11:16:11,979 WARNING penstock.kafka: closing: the broker has a bug (the traceback is above)\n",
    ]
    assert find_bugs(lines) == [
        "ERROR penstock.kafka: API 20 v5 of 127.0.0.1:38790: the broker has a bug | ValueError: a string | "
        'File "/src/encoder.py", line 257, in inner'
    ]


def test_the_page_keeps_its_text_around_the_table(tmp_path: Path) -> None:
    page = tmp_path / "hardening.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.write_page([outcome(problems=["it died"])], seed=7, page=page)
    report.write_page([outcome(problems=["it died"])], seed=7, page=page)
    text = page.read_text()
    assert text.startswith(f"before\n{report.BEGIN}\n")
    assert text.endswith(f"{report.END}\nafter\n")
    assert "old" not in text
    assert text.count("| knocks | 1.5 s | 250 ms |") == 1
    assert "FAILED" in text
    assert report.BEGIN in report.PAGE.read_text()


def outcome(problems: list[str]) -> run.Outcome:
    return run.Outcome(
        name="knock",
        does="knocks",
        seconds=1.0,
        stall_seconds=1.5,
        busy_seconds=0.25,
        slow_turns=1,
        memory_before_bytes=1,
        memory_peak_bytes=2,
        memory_after_bytes=1,
        canary_ack_seconds=0.1,
        canary_delivery_seconds=0.1,
        acked=10,
        lost=0,
        log_lines=0,
        note="",
        details=[],
        problems=problems,
    )


def test_names_are_unique_and_unknown_ones_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    names = [one.name for one in (*SCENARIOS, *SURFACES)]
    assert len(names) == len(set(names))
    assert hostile.main(["--only", "no-such-scenario"]) == 2
    assert "no-such-scenario" in capsys.readouterr().err


def test_an_attack_of_the_generator_is_the_same_in_every_run() -> None:
    def made(seed: str) -> list[bytes]:
        """A request of each API and version."""
        maker = MessageMaker(Random(seed), [UUID(int=7)], 0.2)
        return [
            join(encode_request(key, version, 1, "x", maker.make(request_class(key), version)))
            for key, version in KINDS
        ]

    assert made("7/kafka-requests/1") == made("7/kafka-requests/1")
    assert made("7/kafka-requests/1") != made("8/kafka-requests/1")
