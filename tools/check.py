"""`make check`: style, types and the unit tests of what differs from main, in a minute.

A changed module is tested by the file that mirrors its path and by every unit test that imports it;
a changed test tests itself. `make test` runs every feature.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.lint import ROOT, passes

SOURCES = (ROOT / "operator", ROOT / "trainer")
MOST_TESTS = 60
"""More files than that take longer than a minute: then those that mirror the modules alone."""


def main() -> int:
    """Check what changed; the exit code is the number of failed checks."""
    changed = changed_files()
    modules = [path for path in changed if _is_source(path)]
    tests = tests_of(changed)
    print(f"{len(changed)} files differ from main: {len(modules)} modules, {len(tests)} test files")
    checks = [("ruff", "check", "."), ("ruff", "format", "--check", "."), ("lint-imports",)]
    checks.append(("python", "-m", "tools.prose"))
    if modules:
        checks.append(("pyright", "--warnings", *map(_shown, modules)))
    if tests:
        checks.append(("pytest", "-q", "--no-header", "--maxfail=5", *map(_shown, tests)))
    return sum(not passes(*check) for check in checks)


def changed_files() -> list[Path]:
    """Python files that are new or other than where this branch left main."""
    base = _git("merge-base", "HEAD", "main").strip()
    names = _git("diff", "--name-only", base) + _git("ls-files", "--others", "--exclude-standard")
    paths = (ROOT / name for name in names.splitlines() if name.endswith(".py"))
    return sorted({path for path in paths if path.exists()})


def tests_of(changed: Iterable[Path]) -> list[Path]:
    """Unit tests that changed, that mirror a changed module, or that import one."""
    changed = list(changed)
    modules = {module_name(path) for path in changed if _is_source(path)}
    unit = sorted((ROOT / "tests" / "unit").rglob("test_*.py"))
    direct = {path for path in unit if path in changed} | {
        path for path in unit if mirrored(path) & {_tail(name) for name in modules}
    }
    importing = {path for path in unit if modules & set(imports_of(path))}
    both = direct | importing
    return sorted(both if len(both) <= MOST_TESTS else direct)


def module_name(path: Path) -> str:
    """The dotted name of a module of `operator/` or `trainer/`."""
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def mirrored(test: Path) -> set[tuple[str, ...]]:
    """What a test's path says it tests: its folder's last name and the module's own."""
    return {(test.parent.name, test.stem.removeprefix("test_"))}


def imports_of(path: Path) -> Iterator[str]:
    """The dotted names that a file imports, `from package import module` as both."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _tail(module: str) -> tuple[str, ...]:
    return tuple(module.split(".")[-2:])


def _is_source(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in SOURCES)


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
