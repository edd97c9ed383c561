"""`quick_start`: Spark's Python processes take PySpark from the installed package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.spark.spark_home import link_home

REPORT = (
    "from penstock.spark import quick_start; import os; print(quick_start()); print(os.environ.get('SPARK_HOME'));"
    "home = os.environ.get('SPARK_HOME', ''); print(*sorted(os.listdir(home) if os.path.isdir(home) else []))"
)


def reported(**chosen: str) -> list[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("SPARK_HOME", "PYSPARK_PYTHON")}
    done = subprocess.run(
        [sys.executable, "-c", REPORT], env={**kept, **chosen}, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_the_home_has_programs_and_jars_but_no_python_library_and_goes_with_the_program() -> None:
    effect, home, folders = reported()
    assert effect == "True"
    assert {"bin", "jars"} <= set(folders.split())
    assert "python" not in folders.split()
    assert not Path(home).exists()


@pytest.mark.parametrize("chosen", [{"SPARK_HOME": "/opt/spark"}, {"PYSPARK_PYTHON": "/opt/python"}])
def test_the_users_own_choice_stays(chosen: dict[str, str]) -> None:
    effect, home, _ = reported(**chosen)
    assert effect == "False"
    assert home == chosen.get("SPARK_HOME", "None")


def test_links_lead_to_folders_that_are_no_modules(tmp_path: Path) -> None:
    package, home = tmp_path / "pyspark", tmp_path / "home"
    for folder in ("bin", "jars", "conf", "python", "sql", "__pycache__"):
        (package / folder).mkdir(parents=True)
    (package / "sql" / "__init__.py").touch()
    (package / "worker.py").touch()
    home.mkdir()
    link_home(package, home)
    assert sorted(link.name for link in home.iterdir()) == ["bin", "conf", "jars"]
    assert (home / "conf").resolve() == (package / "conf").resolve()
