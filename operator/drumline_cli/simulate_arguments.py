"""The grammar of `drumline simulate`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from drumline_cli.options import add_output, finite_number, whole_number

DESCRIPTION: Final = """\
Run a trace of jobs on a simulated cluster with the operator's own scheduler and a virtual clock.
Compares the result with plain first-in-first-out queues on the same trace. Needs no cluster.
"""
EXAMPLES: Final = """\
examples:
  drumline simulate examples/simulation/cluster.yaml examples/simulation/trace.csv
  drumline simulate cluster.yaml trace.csv --pictures build/simulation
  drumline simulate cluster.yaml cluster_log.csv --format helios --jobs 20000
  drumline simulate cluster.yaml --jobs 5000 --seed 7 --save-trace synthetic.csv
  drumline simulate --week --days 2 --nodes 32
"""
_TRACE_FORMATS: Final = ("drumline", "philly", "helios", "alibaba2020", "alibaba2023", "acme")


def add_arguments(simulate: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    simulate.add_argument(
        "cluster",
        nargs="?",
        metavar="CLUSTER",
        help="cluster file (docs/simulation.md); not used with --week",
    )
    simulate.add_argument(
        "trace", nargs="?", metavar="TRACE", help="CSV of jobs (default: a synthetic trace)"
    )
    _add_trace(simulate)
    _add_week(simulate)
    simulate.add_argument(
        "--load",
        type=finite_number,
        default=1.15,
        help="work of a synthetic trace divided by the cluster's capacity (default: 1.15)",
    )
    simulate.add_argument(
        "--save-trace", type=Path, metavar="FILE", help="write the trace to this file"
    )
    simulate.add_argument(
        "--alone",
        action="store_true",
        help="use only the cluster's own policy, without a comparison",
    )
    simulate.add_argument(
        "--starts",
        type=finite_number,
        metavar="HOURS",
        help="forecast the starts of pending jobs every N simulated hours, and report the errors"
        " of the forecasts",
    )
    simulate.add_argument(
        "--pictures", type=Path, metavar="FOLDER", help="write pictures (PNG) and a page (HTML)"
    )
    add_output(simulate, "table", "json")


def _add_trace(simulate: argparse.ArgumentParser) -> None:
    """Add format, size and seed of the trace."""
    simulate.add_argument(
        "--format",
        choices=_TRACE_FORMATS,
        default="drumline",
        help="format of the trace (default: drumline)",
    )
    simulate.add_argument(
        "--jobs",
        type=whole_number(1, 1_000_000),
        metavar="N",
        help="use only the first N jobs; size of a synthetic trace (default: 2000)",
    )
    simulate.add_argument(
        "--seed",
        type=whole_number(0, 2**63 - 1),
        default=1,
        help="seed of a synthetic trace, of failures and of spot reclaims (default: 1)",
    )


def _add_week(simulate: argparse.ArgumentParser) -> None:
    simulate.add_argument(
        "--week",
        action="store_true",
        help="compare Drumline with Kueue, JobSet and torchrun on seven days of jobs, failures"
        " and spot reclaims (docs/simulated-week.md)",
    )
    simulate.add_argument(
        "--days",
        type=finite_number,
        default=7.0,
        metavar="N",
        help="with --week: number of days, at most 7 (default: 7)",
    )
    simulate.add_argument(
        "--nodes",
        type=int,
        default=64,
        metavar="N",
        help="with --week: number of nodes with 8 GPUs each (default: 64)",
    )
