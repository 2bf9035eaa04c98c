"""The grammar of `drumline simulate`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from drumline_cli.options import add_output

DESCRIPTION: Final = """\
Run a trace of jobs on a made-up cluster with the operator's own scheduler and a virtual clock, and
compare it with plain first-in-first-out queues on the same trace. Nothing is asked of any cluster.
"""
EXAMPLES: Final = """\
examples:
  drumline simulate examples/simulation/cluster.yaml examples/simulation/trace.csv
  drumline simulate cluster.yaml trace.csv --pictures build/simulation
  drumline simulate cluster.yaml cluster_log.csv --format helios --jobs 20000
  drumline simulate cluster.yaml --jobs 5000 --seed 7 --save-trace made-up.csv
  drumline simulate --week --days 2 --nodes 32
"""
_TRACE_FORMATS: Final = ("drumline", "philly", "helios", "alibaba2020", "alibaba2023", "acme")


def add_arguments(simulate: argparse.ArgumentParser) -> None:
    """Every option of the command."""
    simulate.add_argument(
        "cluster",
        nargs="?",
        metavar="CLUSTER",
        help="cluster file (docs/simulation.md); none with --week",
    )
    simulate.add_argument(
        "trace", nargs="?", metavar="TRACE", help="the jobs; left out: a made-up trace"
    )
    simulate.add_argument(
        "--format",
        choices=_TRACE_FORMATS,
        default="drumline",
        help="of the trace; default: drumline",
    )
    simulate.add_argument(
        "--jobs", type=int, metavar="N", help="only the first N jobs; of a made-up trace: 2000"
    )
    simulate.add_argument(
        "--seed",
        type=int,
        default=1,
        help="of a made-up trace, of failures and spot reclaims; default: 1",
    )
    simulate.add_argument(
        "--week",
        action="store_true",
        help="seven days of jobs, failures and spot reclaims under Drumline and under Kueue with"
        " JobSet and torchrun (docs/simulated-week.md)",
    )
    simulate.add_argument(
        "--days", type=float, default=7.0, metavar="N", help="of --week, fewer; default: 7"
    )
    simulate.add_argument(
        "--nodes", type=int, default=64, metavar="N", help="of --week, of 8 GPUs; default: 64"
    )
    simulate.add_argument(
        "--load", type=float, default=1.15, help="of a made-up trace: work over capacity; 1.15"
    )
    simulate.add_argument(
        "--save-trace", type=Path, metavar="FILE", help="write the trace as it was used"
    )
    simulate.add_argument(
        "--alone", action="store_true", help="only the cluster's own policy, no comparison"
    )
    simulate.add_argument(
        "--starts",
        type=float,
        metavar="HOURS",
        help="every so many simulated hours forecast when waiting jobs will start, and report how"
        " far the forecasts were off",
    )
    simulate.add_argument(
        "--pictures", type=Path, metavar="FOLDER", help="write pictures (PNG) and a page (HTML)"
    )
    add_output(simulate, "table", "json")
