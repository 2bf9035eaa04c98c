"""The grammar of `drumline check-nodes`."""

from __future__ import annotations

import argparse
from typing import Final

from drumline_cli.options import add_context

DESCRIPTION: Final = """\
Check idle nodes of a pool: a job on all of them computes products whose result is known, writes and
reads memory, and exchanges messages between pods, each with two partners. What is slow or wrong
beside the others is written to spec.nodeHealth.checked of the pool, which quarantines the node; one
that passes is cleared. The job ends at once for any other that its queue lets preempt it: give it a
queue that only borrows (docs/node-health.md). The exit code is 1 if a node failed.
"""
EXAMPLES: Final = """\
examples:
  drumline check-nodes h100 --queue node-checks --image drumline/trainer:0.1.0 -n drumline-system
  drumline check-nodes h100 gpu-3 gpu-7 --queue node-checks --image drumline/trainer:0.1.0
  drumline check-nodes h100 --queue node-checks --image drumline/trainer:0.1.0 --report-only
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Every option of the command."""
    command.add_argument("pool", metavar="POOL", help="a GpuPool")
    command.add_argument("nodes", nargs="*", metavar="NODE", help="default: all that are idle")
    command.add_argument("--queue", required=True, help="of the job: one that only borrows")
    command.add_argument("--image", required=True, help="the trainer's")
    command.add_argument(
        "--wait",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="give up if the job has not ended by then; default: 600",
    )
    command.add_argument(
        "--report-only", action="store_true", help="print what was found, and change no pool"
    )
    command.add_argument(
        "--device", choices=("cpu", "gpu"), help="what is checked; default: as for training"
    )
    command.add_argument(
        "-n",
        "--namespace",
        help="of the job; quarantined nodes are checked from the operator's alone; default: that of"
        " the context",
    )
    add_context(command)
