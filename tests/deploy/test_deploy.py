"""The files in deploy/ are valid. `make dist` also builds the image where a container engine runs."""

import configparser
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from penstock.config.loading import load_node_config

DEPLOY = Path(__file__).parents[2] / "deploy"
HADOLINT = Path(sys.executable).with_name("hadolint")


def test_the_linter_of_dockerfiles_finds_nothing() -> None:
    linted = subprocess.run([HADOLINT, DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (linted.returncode, linted.stdout) == (0, ""), linted.stdout + linted.stderr


def test_the_image_copies_only_files_that_exist_and_the_build_may_see() -> None:
    seen = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().split() if line[0] == "!"}
    copied = {
        name
        for line in (DEPLOY / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for name in line.split()[1:-1]
    }
    assert copied == seen
    assert all((DEPLOY.parent / name).exists() for name in copied)


def test_the_settings_of_the_image_are_settings() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    pairs = [word.split("=", 1) for word in text.split() if word.startswith("PENSTOCK_")]
    config = load_node_config(flags={}, environment=dict(pairs), toml_text="", toml_name="")  # type: ignore[arg-type]
    assert (str(config.kafka), str(config.advertise)) == ("0.0.0.0:9092", "127.0.0.1:9092")


@pytest.mark.parametrize("node_id", [1, 2, 3])
def test_the_cluster_file_makes_three_nodes(node_id: int) -> None:
    text = (DEPLOY / "cluster.toml").read_text()
    config = load_node_config(flags={"node_id": node_id}, environment={}, toml_text=text, toml_name="")
    assert str(config.kafka) == f"10.0.0.{node_id}:9092"
    assert len(config.seeds) == 3
    assert len(tomllib.loads(text)["nodes"]) == 3


def test_the_file_of_one_node_is_valid() -> None:
    text = (DEPLOY / "penstock.toml").read_text()
    config = load_node_config(flags={}, environment={}, toml_text=text, toml_name="")
    assert str(config.advertise) == "broker.example.org:9092"


def test_the_service_starts_the_command_with_the_file_of_this_folder(tmp_path: Path) -> None:
    unit = configparser.ConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read(DEPLOY / "penstock.service")
    command = unit["Service"]["ExecStart"].split()
    assert command[1:3] == ["serve", "--config"]
    assert Path(command[3]).name == "penstock.toml"
    if shutil.which("systemd-analyze"):
        text = (DEPLOY / "penstock.service").read_text().replace(command[0], sys.executable)
        (tmp_path / "penstock.service").write_text(text)
        verify = ["systemd-analyze", "verify", str(tmp_path / "penstock.service")]
        verified = subprocess.run(verify, capture_output=True, text=True, check=False, env={**os.environ})
        assert "penstock.service" not in verified.stderr, verified.stderr
