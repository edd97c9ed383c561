"""`penstock sim`: what it prints and how it ends."""

import json

from click.testing import CliRunner, Result

from penstock.cli.sim import sim
from tests.sim.mutants import MUTANTS, applied


def run(*arguments: str) -> Result:
    return CliRunner().invoke(sim, arguments)


def test_passing_seeds_exit_with_0_and_print_a_table_of_events() -> None:
    result = run("--seeds", "2")
    assert result.exit_code == 0, result.output
    assert "entries committed" in result.stdout
    assert "2 seeds of level core" in result.stdout


def test_a_failing_seed_exits_with_1_and_names_the_promise_and_the_command_to_repeat_it() -> None:
    with applied(next(mutant for mutant in MUTANTS if mutant.name == "vote not flushed")):
        result = run("--seed", "0")
    assert result.exit_code == 1
    assert "seed 0: a vote is durable before it is told" in result.stdout
    assert "penstock sim --level core --seed 0 --trace" in result.stderr


def test_json_has_the_failure_and_its_last_events() -> None:
    with applied(next(mutant for mutant in MUTANTS if mutant.name == "vote not flushed")):
        result = run("--seeds", "5", "--json")
    facts = json.loads(result.stdout)
    assert facts["failure"]["seed"] == 0
    assert facts["failure"]["promise"] == "a vote is durable before it is told"
    assert facts["failure"]["last_events"]


def test_a_trace_shows_everything_and_is_the_same_every_time() -> None:
    first, again = run("--seed", "1", "--trace"), run("--seed", "1", "--trace")
    assert "is leader in term" in first.stdout
    lines = [output.stdout.split("what happened")[0] for output in (first, again)]
    assert lines[0] == lines[1]


def test_whole_nodes_are_another_level() -> None:
    result = run("--level", "node", "--seed", "3", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["counts"]["frames"] > 0
