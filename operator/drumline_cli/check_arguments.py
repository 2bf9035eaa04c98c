"""The grammar of `drumline check-nodes`."""

from __future__ import annotations

import argparse
from typing import Final

from drumline_cli.options import add_context, finite_number

DESCRIPTION: Final = """\
Check the idle nodes of a pool. A job on all of these nodes computes products with known results,
writes and reads memory, and exchanges messages between pods, each with two partners. Nodes that are
slow or faulty compared with the others are written to spec.nodeHealth.checked of the pool, which
quarantines them. Nodes that pass are cleared. The job ends immediately when another job may preempt
it. So give it a queue that only borrows (docs/node-health.md). The exit code is 1 if a node failed.
"""
EXAMPLES: Final = """\
examples:
  drumline check-nodes h100 --queue node-checks --image drumline/trainer:0.1.0 -n drumline-system
  drumline check-nodes h100 gpu-3 gpu-7 --queue node-checks --image drumline/trainer:0.1.0
  drumline check-nodes h100 --queue node-checks --image drumline/trainer:0.1.0 --report-only
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    command.add_argument("pool", metavar="POOL", help="a GpuPool")
    command.add_argument(
        "nodes",
        nargs="*",
        default=[],
        metavar="NODE",
        help="nodes to check (default: all idle nodes)",
    )
    command.add_argument(
        "--queue", required=True, help="queue of the job; use one that only borrows"
    )
    command.add_argument("--image", required=True, help="image of the job: the trainer's image")
    command.add_argument(
        "--wait",
        type=finite_number,
        default=600.0,
        metavar="SECONDS",
        help="seconds until the command gives up if the job has not ended (default: 600)",
    )
    command.add_argument(
        "--report-only", action="store_true", help="print the results, but do not change the pool"
    )
    command.add_argument(
        "--device",
        choices=("cpu", "gpu"),
        help="device to check (default: the device for training)",
    )
    command.add_argument(
        "-n",
        "--namespace",
        help="namespace of the job; quarantined nodes can only be checked from the operator's"
        " namespace (default: the context's namespace)",
    )
    add_context(command)
