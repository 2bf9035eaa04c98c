"""Programs that call a storage library in a process of their own.

The library's threads do not live on in a forked process, and its calls never return there. Who
forks ranks must not have called it. Such a program prints its answer, and returns 0 or an `errno`.
"""

from __future__ import annotations

import errno
import subprocess
import sys

from drumline_contract.buckets.failures import StoreError


def answer_apart(module: str, *arguments: str) -> bytes:
    """Run a module as a program, and return its output.

    Raises:
        FileNotFoundError: the storage answers that it is not there.
        StoreError: any other failure.
    """
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, check=False)  # its retries have an end
    if not done.returncode:
        return done.stdout
    # The last line is the message. Earlier ones can be warnings.
    said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    if done.returncode == errno.ENOENT:
        raise FileNotFoundError(errno.ENOENT, said)
    killed = done.returncode < 0  # by a signal, as where memory is short
    raise StoreError(
        said or f"the reader of {arguments[0]} ended with {done.returncode}",
        # EREMOTEIO marks a store that may answer later.
        may_come_back=killed or done.returncode == errno.EREMOTEIO,
    )
