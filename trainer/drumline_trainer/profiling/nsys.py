"""`python -m drumline_trainer.profiling.nsys [--print] [--report NAME] -- OPTIONS OF THE TRAINER`.

Runs the trainer under Nsight Systems, with ranges on every phase and collective; only the window of
`profile.start_step` is recorded, which must be set.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Sequence


def nsys_command(options: Sequence[str], *, report: str) -> list[str]:
    """Return the whole command line. nsys follows forked ranks only with an option."""
    return [
        "nsys",
        "profile",
        "--trace=cuda,nvtx,osrt",
        "--sample=none",
        "--trace-fork-before-exec=true",
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        "--force-overwrite=true",
        f"--output={report}",
        sys.executable,
        "-m",
        "drumline_trainer",
        "--set",
        "profile.nvtx=true",
        *options,
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the command, or become it. Returns 127 where nsys is not installed."""
    parser = argparse.ArgumentParser(
        prog="drumline_trainer.profiling.nsys",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--print", action="store_true", help="show the command and do nothing")
    parser.add_argument("--report", default="drumline", help="name of nsys's report")
    parser.add_argument("options", nargs="*", metavar="-- OPTIONS", help="of drumline_trainer")
    chosen = parser.parse_args(arguments)
    command = nsys_command(chosen.options, report=chosen.report)
    if chosen.print:
        sys.stdout.write(f"{shlex.join(command)}\n")
        return 0
    if shutil.which(command[0]) is not None:
        os.execvp(command[0], command)  # noqa: S606 - the arguments are ours and the caller's
    sys.stderr.write(f"nsys is not on PATH; where it is, run: {shlex.join(command)}\n")
    return 127


if __name__ == "__main__":
    sys.exit(main())
