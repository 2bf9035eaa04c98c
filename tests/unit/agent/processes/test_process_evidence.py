"""Read the kernel's evidence about real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from drumline_agent.processes.process_evidence import CpuWatch
from drumline_agent.protocol.member_reports import ProcessEvidence
from tests.patience import HANG_SECONDS

SPINS = "while True: pass"
SLEEPS = "import time; time.sleep(3600)"


@contextmanager
def child(program: str, *, nice: int) -> Iterator[int]:
    """Run a process on the first processor that this test may use."""
    start = f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}}); "
    start += f"os.nice({nice}); print(flush=True)\n{program}"
    with subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


def test_a_process_that_gets_little_of_a_crowded_processor_is_busy() -> None:
    """If the starved process did not count as busy, a hang would be found only after 600 s."""
    with ExitStack() as children:
        for _ in range(3):
            children.enter_context(child(SPINS, nice=0))
        spins = CpuWatch(children.enter_context(child(SPINS, nice=19)))
        sleeps = CpuWatch(children.enter_context(child(SLEEPS, nice=19)))
        spins.read(now=time.monotonic())
        sleeps.read(now=time.monotonic())
        end = time.monotonic() + HANG_SECONDS
        while spins.read(now=time.monotonic()) != ProcessEvidence.BUSY:
            assert time.monotonic() < end
        assert sleeps.read(now=time.monotonic()) == ProcessEvidence.NONE
