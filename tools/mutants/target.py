"""What a run of mutants is about: which modules get faults, and which tests may notice them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tools.mutants.mutations import Mutant, mutants_of

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Modules of one package, by area, and their tests.

    Attributes:
        package: The folder that all module names are relative to.
        areas: Glob patterns of modules, without `.py`; each area gives as many mutants.
        tests: What pytest collects. One CPU should do it in half a minute.
        options: Further options of pytest.
        goal: The score below which the run fails.
        memory_bytes: Address space of a process that has one fault.
        prepare: Called before anything is collected.
    """

    package: Path
    areas: dict[str, tuple[str, ...]]
    tests: tuple[str, ...]
    options: tuple[str, ...] = ()
    goal: float
    memory_bytes: int = 4 << 30
    prepare: Callable[[], None] = field(default=lambda: None)

    def modules(self, area: str) -> list[Path]:
        """The files of an area.

        Raises:
            LookupError: A pattern fits no file.
        """
        paths: list[Path] = []
        for pattern in self.areas[area]:
            files = sorted(self.package.rglob(f"{pattern}.py"))
            if not files:
                raise LookupError(f"no module {pattern} in {self.package}")
            paths += files
        return paths

    def mutants(self, area: str, *, only: str = "") -> list[Mutant]:
        """All mutants of the area's modules whose name contains `only`."""
        paths = [path for path in self.modules(area) if only in path.stem]
        return [mutant for path in paths for mutant in mutants_of(path)]
