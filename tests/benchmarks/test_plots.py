"""The plots in docs/ show the figures of the tables beside them."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def plots() -> ModuleType:
    spec = importlib.util.spec_from_file_location("plots", BENCHMARKS / "plots.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_plots_match_the_tables(plots: ModuleType) -> None:
    drawn = {name: plots.svg(plot) for name, plot in plots.plots(plots.PAGE.read_text()).items()}
    stored = {path.stem: path.read_text() for path in plots.FOLDER.glob("*.svg")}
    assert stored == drawn, "run: python benchmarks/plots.py"


def test_a_missing_table_is_named(plots: ModuleType) -> None:
    with pytest.raises(SystemExit, match="no table that begins with the column 'speed'"):
        plots.table("| load |\n|---|\n| x |\n", "speed")


def test_a_cell_without_a_number_is_named(plots: ModuleType) -> None:
    with pytest.raises(SystemExit, match="'fast' should be a number"):
        plots.number("fast")
