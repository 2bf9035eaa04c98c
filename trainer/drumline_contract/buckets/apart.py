"""Programs that call a storage library in a process of their own.

The library's threads do not live on in a forked process, and its calls never return there. Who
forks ranks must not have called it. Such a program prints its answer, and returns 0 or an `errno`.

It may take minutes, for a large model. A rank then has to report that it is alive, because other
ranks that are ready already wait for it (`waits_reported`).
"""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from drumline_contract.buckets.failures import StoreError

_REPORT_SECONDS: Final = 0.5
_report: Final[ContextVar[Callable[[], None]]] = ContextVar("report", default=lambda: None)


@contextmanager
def waits_reported(report: Callable[[], None]) -> Generator[None]:
    """Call a function again and again while this thread waits for such a program.

    Args:
        report: called about twice a second. An exception of it ends the program.
    """
    token = _report.set(report)
    try:
        yield
    finally:
        _report.reset(token)


def answer_apart(module: str, *arguments: str) -> bytes:
    """Run a module as a program, and return its output.

    Raises:
        FileNotFoundError: the storage answers that it is not there.
        StoreError: any other failure.
    """
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        answer, errors = _outputs(program)
    code = program.returncode
    if not code:
        return answer
    # The last line is the message. Earlier ones can be warnings.
    said = errors.decode(errors="replace").strip().rpartition("\n")[2]
    if code == errno.ENOENT:
        raise FileNotFoundError(errno.ENOENT, said)
    killed = code < 0  # by a signal, as where memory is short
    raise StoreError(
        said or f"the reader of {arguments[0]} ended with {code}",
        # EREMOTEIO marks a store that may answer later.
        may_come_back=killed or code == errno.EREMOTEIO,
    )


def _outputs(program: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Return both outputs at the end of a program, whose retries have an end."""
    try:
        while True:
            try:
                return program.communicate(timeout=_REPORT_SECONDS)
            except subprocess.TimeoutExpired:
                _report.get()()
    except BaseException:
        program.kill()
        raise
