"""The rules of the house that no type checker holds."""

from __future__ import annotations

import ast
import operator
import os
import re
import subprocess
import sys
import warnings
from itertools import pairwise
from pathlib import Path

import pytest

from tools import house

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "operator").rglob("*.py")) + sorted((ROOT / "trainer").rglob("*.py"))
LONG_FILE_LINES = 600
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


def test_the_standard_library_s_operator_stays_itself_from_the_root_of_the_repository() -> None:
    script = "import operator, collections; print(operator.__file__)"
    assert run(sys.executable, "-c", script).strip() == operator.__file__
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert not list((ROOT / "operator").glob("*.py"))


@pytest.mark.parametrize(
    "module", ["drumline_contract", "drumline_contract.config", "drumline_planner"]
)
def test_what_both_sides_share_needs_the_standard_library_alone(module: str) -> None:
    loaded = loaded_by(module)
    ours = {"drumline_contract", "drumline_planner"}
    foreign = loaded - set(sys.stdlib_module_names) - loaded_by("site")
    assert {name for name in foreign if not name.startswith("__")} <= ours


def test_the_control_plane_never_loads_torch() -> None:
    modules = [
        ".".join(path.relative_to(ROOT / "operator").with_suffix("").parts)
        for path in SOURCES
        if path.is_relative_to(ROOT / "operator") and path.stem not in {"__init__", "__main__"}
    ]
    for drawing in (
        "drumline_simulator.results.charts",
        "drumline_cli.plan.charts",
        "drumline_console.gantt.picture",
    ):
        modules.remove(drawing)  # loaded when somebody wants pictures drawn
    loaded = loaded_by(*modules)
    assert "drumline" in loaded
    assert "matplotlib" not in loaded
    assert not loaded & {"torch", "safetensors"}


@pytest.mark.filterwarnings("default")  # a long file is a warning, not a failure
def test_long_files_are_reported() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in SOURCES}
    longer = {name: lines for name, lines in lengths.items() if lines > LONG_FILE_LINES}
    if longer:
        warnings.warn(f"files of more than {LONG_FILE_LINES} lines: {longer}", stacklevel=1)


def test_every_module_s_name_says_what_is_in_it() -> None:
    assert not [path for path in SOURCES if NAMELESS & set(path.with_suffix("").parts)]


def test_every_module_says_what_it_is() -> None:
    assert not [m.path for m in MODULES if ast.get_docstring(m.tree) is None]


# What tools/house.py counts, held to a limit.
MODULES = [house.Module(path) for path in SOURCES]
ALL_MODULES = [*MODULES, *house.modules(ROOT / "tests")]
LONGEST_FUNCTION_LINES = 60
MOST_PUBLIC_METHODS = 15
TWICE_DEFINED = {
    "Allocation",  # nodes of a gang: in the scheduler, and for a period in the simulator
    "Condition",  # the API's; as the API server sends it
    "DrumlineCallback",  # of Hugging Face's Trainer; of Lightning's
    "Node",  # the scheduler's; as the API server sends it
    "Phase",  # of a job; of a rank
    "Prefetcher",  # of batches; of offloaded parameters
    "Superseded",  # a commit, an agent's record: by a later membership
    "Taint",  # the scheduler's; as the API server sends it
    "Toleration",  # the API's; the scheduler's
}
"""Class names that two modules may define: one idea each, at two places."""
_REASON = re.compile(r"# (noqa|type: ignore|pyright: ignore)(?P<codes>[^#-]*)(?P<why>-.+|#.+)?$")


def where(module: house.Module, line: int, name: str = "") -> str:
    return f"{module.path.relative_to(ROOT)}:{line} {name}".rstrip()


def test_every_identifier_names_something() -> None:
    vague = [where(m, *hit) for m in ALL_MODULES for hit in house.vague_identifiers(m)]
    assert not vague


def test_no_function_is_longer_than_a_screen() -> None:
    assert not [
        where(module, function.lineno, function.name)
        for module in MODULES
        for function in module.functions()
        if house.code_lines(function, module) > LONGEST_FUNCTION_LINES
    ]


def test_no_class_does_everything() -> None:
    assert not [
        where(module, node.lineno, node.name)
        for module in MODULES
        for node in module.classes()
        if len(house.methods(node, public=True)) > MOST_PUBLIC_METHODS
    ]


def test_a_class_name_means_one_thing() -> None:
    assert house.repeated_classes(MODULES).keys() == TWICE_DEFINED


def test_every_exception_from_a_rule_says_why() -> None:
    """`# noqa: CODE - reason`, `# pyright: ignore[code] - reason`; a file's own line above it."""
    silent: list[str] = []
    for module in MODULES:
        for number, line in enumerate(module.text.splitlines(), 1):
            exception = _REASON.search(line)
            if exception and not exception["why"]:
                silent.append(where(module, number, line.strip()))
    assert not silent


def test_imports_are_at_the_top_unless_a_reason_stands_beside_them() -> None:
    assert not [
        where(module, line)
        for module in MODULES
        for line in sorted(module.imports_in_functions())
        if "PLC0415 - " not in module.text.splitlines()[line - 1]
    ]


def test_imports_for_types_alone_have_a_reason_above_them() -> None:
    assert not [
        where(module, number)
        for module in MODULES
        for number, (above, line) in enumerate(pairwise(module.text.splitlines()), 2)
        if line.startswith("if TYPE_CHECKING:") and not above.startswith("#")
    ]
