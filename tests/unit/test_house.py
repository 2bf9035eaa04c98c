"""The rules of the house that no type checker holds."""

from __future__ import annotations

import ast
import operator
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "operator").rglob("*.py")) + sorted((ROOT / "trainer").rglob("*.py"))
LONGEST_FILE_LINES = 400
LONGER_FILES: dict[str, str] = {}
"""Path -> why it is longer than a file should be."""
NAMELESS = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}
IMPORTS = {**os.environ, "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'trainer'}"}


def run(*command: str, folder: Path = ROOT) -> str:
    done = subprocess.run(
        command, cwd=folder, env=IMPORTS, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def loaded_by(*modules: str) -> set[str]:
    """Top-level modules that a fresh interpreter has after importing these."""
    script = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    return {name.partition(".")[0] for name in run(sys.executable, "-c", script).split()}


def test_the_arrows_between_the_rooms_hold() -> None:
    completed = run(str(Path(sys.executable).with_name("lint-imports")), "--no-cache")
    assert "0 broken" in completed


def test_the_standard_library_s_operator_stays_itself_from_the_root_of_the_repository() -> None:
    script = "import operator, collections; print(operator.__file__)"
    assert run(sys.executable, "-c", script).strip() == operator.__file__
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert not list((ROOT / "operator").glob("*.py"))


@pytest.mark.parametrize("module", ["contract", "config"])
def test_what_both_sides_share_needs_the_standard_library_alone(module: str) -> None:
    loaded = loaded_by(f"drumline_trainer.{module}")
    foreign = loaded - set(sys.stdlib_module_names) - loaded_by("site")
    assert {name for name in foreign if not name.startswith("__")} == {"drumline_trainer"}


def test_the_control_plane_never_loads_torch() -> None:
    modules = [
        ".".join(path.relative_to(ROOT / "operator").with_suffix("").parts)
        for path in SOURCES
        if path.is_relative_to(ROOT / "operator") and path.stem not in {"__init__", "__main__"}
    ]
    modules.remove("drumline.simulator.results.charts")  # loaded when somebody wants pictures drawn
    loaded = loaded_by(*modules)
    assert "drumline" in loaded
    assert "matplotlib" not in loaded
    assert not loaded & {"torch", "safetensors"}


def test_no_file_got_away() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in SOURCES}
    longer = {name for name, lines in lengths.items() if lines > LONGEST_FILE_LINES}
    assert longer == LONGER_FILES.keys()


def test_every_module_s_name_says_what_is_in_it() -> None:
    assert not [path for path in SOURCES if NAMELESS & set(path.with_suffix("").parts)]


def test_every_module_says_what_it_is() -> None:
    silent = [path for path in SOURCES if ast.get_docstring(ast.parse(path.read_text())) is None]
    assert not silent
