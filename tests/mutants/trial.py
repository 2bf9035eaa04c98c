"""One mutant against the tests, in a process of its own.

The parent has loaded pytest, hypothesis and numpy but nothing of the scheduler. A child imports the
scheduler anew, with the faulty module in place of the true one, and stops at the first test that
fails.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import os
import resource
import signal
import sys
import time
import types
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pytest

from tests.mutants.mutations import Mutant

OPTIONS = (
    *("-x", "-q", "-p", "no:cacheprovider"),
    # what the parent has loaded is no part of the tests: its asserts need no rewriting
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)
MOST_CPU_SECONDS = 90
"""A mutant that takes longer than any honest run loops: that is noticed too."""


class Fate(StrEnum):
    KILLED = "killed"
    TIMED_OUT = "timed out"
    SURVIVED = "survived"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A mutant that is being tried; None: the modules as they are."""

    mutant: Mutant | None
    pid: int
    began: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of it."""

    mutant: Mutant | None
    fate: Fate
    seconds: float


def begin(mutant: Mutant | None, *, tests: Sequence[str]) -> Trial:
    """Fork a child that tries the mutant."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os._exit(_try(mutant, tests=tests))
    return Trial(mutant=mutant, pid=pid, began=time.monotonic())


def finished(trials: Sequence[Trial]) -> Result | None:
    """The result of one that is done, if one is."""
    for trial in trials:
        seconds = time.monotonic() - trial.began
        pid, status = os.waitpid(trial.pid, os.WNOHANG)
        if pid:
            looped = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU
            fate = Fate.TIMED_OUT if looped else Fate.SURVIVED if status == 0 else Fate.KILLED
            return Result(mutant=trial.mutant, fate=fate, seconds=seconds)
    return None


def _try(mutant: Mutant | None, *, tests: Sequence[str]) -> int:
    """0 if no test noticed the fault."""
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_SECONDS, MOST_CPU_SECONDS + 10))
    if mutant is not None:
        sys.meta_path.insert(0, _Faulty(mutant))
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        with contextlib.suppress(SystemExit):
            return int(pytest.main([*OPTIONS, *tests]) != pytest.ExitCode.OK)
    return 1


class _Faulty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the faulty module where the true one would be."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self._name = module_name(mutant.path)

    def find_spec(
        self, fullname: str, path: object, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname != self._name:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=str(self._mutant.path))

    def exec_module(self, module: types.ModuleType) -> None:
        module.__file__ = str(self._mutant.path)
        exec(compile(self._mutant.tree(), str(self._mutant.path), "exec"), module.__dict__)  # noqa: S102


def module_name(path: Path) -> str:
    """The dotted name of a module of `operator/`."""
    parts = path.with_suffix("").parts
    return ".".join(parts[parts.index("drumline") :])
