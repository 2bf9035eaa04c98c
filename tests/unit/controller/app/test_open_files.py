"""The limit of open files, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource
from drumline.app.operator import raise_file_limit
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
assert raise_file_limit() == hard
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
"""


def test_a_low_soft_limit_is_raised_to_the_hard_one() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
