"""One mutant against the tests that reach it, in a process of its own.

The parent has collected the tests and run none. A child is a fork of it: it puts the faulty code
into the function that has the fault, wherever that function was imported to, runs its tests, the
quickest first, and ends at the first that fails. Its CPU and memory have bounds that the kernel
keeps, so no fault takes the machine with it; its time on the wall is pytest's limit for each test.
"""

from __future__ import annotations

import gc
import importlib
import math
import mmap
import os
import pickle
import resource
import signal
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pytest

from tools.mutants.mutations import Mutant
from tools.mutants.target import ROOT

TIMES_AS_LONG = 4
AT_LEAST_SECONDS = 4.0
"""A test that takes more CPU than both loops: that is noticed too. So are all tests together."""


class Fate(StrEnum):
    KILLED = "killed"
    TIMED_OUT = "timed out"
    SURVIVED = "survived"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of a mutant, and the CPU that took."""

    mutant: Mutant
    fate: Fate
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What one test does while nothing is wrong."""

    seconds: float
    """CPU, somewhat more than without looking at what it calls."""
    functions: frozenset[tuple[str, str]]
    """Module and qualified name of all it calls in the modules asked about."""
    passed: bool


class Faultless:
    """What the tests do without a fault, from a child process that runs each of them once."""

    def __init__(self, session: pytest.Session, modules: frozenset[str]) -> None:
        for name in sorted(modules):
            importlib.import_module(name)  # tests may import it late, or not at all
        self.functions = functions_of(modules)
        self._items, self._session = session.items, session
        self.reach = list[Reach]()
        self._numbers = {
            id(code): number
            for number, functions in enumerate(self.functions.values())
            for function in functions
            for code in _codes(function.__code__)
        }
        self._reached = mmap.mmap(-1, len(self.functions))
        """A byte a function, shared with all processes that a test forks."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "reach"
            child(
                lambda: file.write_bytes(pickle.dumps([self._reach(item) for item in self._items])),
                session,
            )
            os.wait()
            if file.exists():
                self.reach = pickle.loads(file.read_bytes())  # noqa: S301 - our own child's

    @property
    def failed(self) -> list[str]:
        """Tests that fail without a fault; all tests if their process ended."""
        if not self.reach:
            return [item.nodeid for item in self._items]
        tests = zip(self._items, self.reach, strict=True)
        return [item.nodeid for item, reach in tests if not reach.passed]

    def tests_of(self, mutant: Mutant) -> list[tuple[pytest.Item, float]]:
        """Tests that reach the faulty function, and their seconds: the quickest first."""
        where = module_name(mutant.path), mutant.function
        tests = [
            (item, reach.seconds)
            for item, reach in zip(self._items, self.reach, strict=True)
            if where in reach.functions
        ]
        return sorted(tests, key=lambda test: test[1])

    def _reach(self, item: pytest.Item) -> Reach:
        self._reached[:] = bytes(len(self._reached))
        before, failed = _used(), self._session.testsfailed
        threading.settrace(self._note)
        sys.settrace(self._note)
        run(item)
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type] - typeshed wants a function
        functions = frozenset(
            where
            for where, reached in zip(self.functions, self._reached[:], strict=True)
            if reached
        )
        return Reach(
            seconds=_used() - before,
            functions=functions,
            passed=self._session.testsfailed == failed,
        )

    def _note(self, frame: types.FrameType, _event: str, _argument: object) -> None:
        number = self._numbers.get(id(frame.f_code))
        if number is not None:
            self._reached[number] = 1


def begin(
    session: pytest.Session,
    mutant: Mutant,
    *,
    functions: Sequence[types.FunctionType],
    tests: Sequence[tuple[pytest.Item, float]],
    memory_bytes: int,
) -> int:
    """Fork a child that tries the mutant; its process id."""
    faulty = faulty_codes(mutant, functions=functions)

    def try_it() -> None:
        # a fault that asks for more gets a MemoryError, and so a test that fails
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        seconds_in_all = math.ceil(may_take(sum(seconds for _, seconds in tests)))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds_in_all, seconds_in_all + 1))
        for function, code in zip(functions, faulty, strict=True):
            function.__code__ = code
        for item, seconds in tests:
            signal.setitimer(signal.ITIMER_PROF, may_take(seconds))
            run(item)
            if session.testsfailed:
                break

    return child(try_it, session)


def ended() -> tuple[int, Fate, float]:
    """The next child that ends, what became of its mutant, and the CPU it took.

    Raises:
        ChildProcessError: It was ended from outside, which says nothing about its mutant.
    """
    pid, status, used = os.wait4(-1, 0)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # ranks that its tests forked
    ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if ended_by in {signal.SIGKILL, signal.SIGTERM, signal.SIGINT}:
        raise ChildProcessError(f"a child was ended by {signal.Signals(ended_by).name}")
    looped = ended_by in {signal.SIGPROF, signal.SIGXCPU}
    fate = Fate.TIMED_OUT if looped else Fate.SURVIVED if status == 0 else Fate.KILLED
    return pid, fate, used.ru_utime + used.ru_stime


def may_take(seconds: float) -> float:
    """The CPU after which what took so many seconds without a fault is said to loop."""
    return max(AT_LEAST_SECONDS, TIMES_AS_LONG * seconds)


def run(item: pytest.Item) -> None:
    """One test, as pytest runs it; the session counts whether it failed."""
    item.ihook.pytest_runtest_protocol(item=item, nextitem=None)


def faulty_codes(
    mutant: Mutant, *, functions: Sequence[types.FunctionType]
) -> list[types.CodeType]:
    """Of each function, its code with the fault.

    Raises:
        KeyError: The module is not the one that was imported.
    """
    module = compile(mutant.tree(), str(mutant.path), "exec")
    faulty = {(code.co_qualname, code.co_firstlineno): code for code in _codes(module)}
    return [
        faulty[function.__code__.co_qualname, function.__code__.co_firstlineno]
        for function in functions
    ]


def child(work: Callable[[], object], session: pytest.Session) -> int:
    """Fork a child that does this, says nothing and ends; with 0 if no test failed in it."""
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    os.setsid()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    failed = True
    try:
        work()
        failed = session.testsfailed > 0
    finally:
        os._exit(failed)  # whatever happens, the child must not go on as the parent would


def module_name(path: Path) -> str:
    """The dotted name of a module of `operator/` or `trainer/`."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts[1:])


def _used() -> float:
    """CPU seconds of this process and of those it waited for."""
    both = (resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def functions_of(modules: frozenset[str]) -> dict[tuple[str, str], list[types.FunctionType]]:
    """All functions and methods of these modules, by module and qualified name."""
    gc.unfreeze()  # tests/conftest.py freezes what was collected, and frozen objects are not listed
    by_name: dict[tuple[str, str], list[types.FunctionType]] = {}
    for candidate in gc.get_objects():
        # not isinstance: what only claims a class, as torch's proxies do, may warn when it is asked
        if type(candidate) is types.FunctionType and candidate.__module__ in modules:
            by_name.setdefault((candidate.__module__, candidate.__code__.co_qualname), []).append(
                candidate
            )
    return by_name


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code and all that is defined in it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _codes(inner)
