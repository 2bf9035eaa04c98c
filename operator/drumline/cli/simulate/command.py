"""`drumline simulate CLUSTER [TRACE]`: jobs on a virtual clock, under several policies."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from drumline.cli import command
from drumline.cli.command import Commands, Output
from drumline.cli.errors import BadInput

_DESCRIPTION: Final = """\
Run a trace of jobs on a made-up cluster with the operator's own scheduler and a virtual clock, and
compare it with plain first-in-first-out queues on the same trace. Nothing is asked of any cluster.
"""
_EXAMPLES: Final = """\
examples:
  drumline simulate examples/simulation/cluster.yaml examples/simulation/trace.csv
  drumline simulate cluster.yaml trace.csv --pictures build/simulation
  drumline simulate cluster.yaml cluster_log.csv --format helios --jobs 20000
  drumline simulate cluster.yaml --jobs 5000 --seed 7 --save-trace made-up.csv
"""
_FORMATS: Final = ("drumline", "philly", "helios", "alibaba2020", "alibaba2023", "acme")


def add(commands: Commands) -> None:
    """Add the subcommand."""
    simulate = command.add(
        commands,
        "simulate",
        run=run,
        summary="a trace of jobs on a virtual clock, compared with plain queues",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    simulate.add_argument("cluster", metavar="CLUSTER", help="cluster file (docs/simulation.md)")
    simulate.add_argument(
        "trace", nargs="?", metavar="TRACE", help="the jobs; left out: a made-up trace"
    )
    simulate.add_argument(
        "--format", choices=_FORMATS, default="drumline", help="of the trace; default: drumline"
    )
    simulate.add_argument(
        "--jobs", type=int, metavar="N", help="only the first N jobs; of a made-up trace: 2000"
    )
    simulate.add_argument("--seed", type=int, default=1, help="of a made-up trace; default: 1")
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
        help="every so many simulated hours ask for the expected starts of those who wait, and tell"
        " how far they were off",
    )
    simulate.add_argument(
        "--pictures", type=Path, metavar="FOLDER", help="write pictures (PNG) and a page (HTML)"
    )
    simulate.add_argument(
        "-o", "--output", choices=("table", "json"), default="table", help="default: table"
    )


def run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """The comparison, rendered.

    Raises:
        BadInput: a file or a number is not usable.
    """
    del environment
    from drumline.cli.simulate import study as simulation  # noqa: PLC0415 - `--help` needs none of it

    if chosen.jobs is not None and chosen.jobs < 1:
        raise BadInput(f"--jobs must be at least 1, not {chosen.jobs}")
    if not 0 < chosen.load < float("inf"):
        raise BadInput(f"--load must be above 0, not {chosen.load:g}")
    if chosen.starts is not None and not chosen.starts > 0:
        raise BadInput(f"--starts must be above 0, not {chosen.starts:g}")
    study = simulation.study(
        simulation.Wish(
            cluster=chosen.cluster,
            trace=chosen.trace,
            format=chosen.format,
            jobs=chosen.jobs,
            seed=chosen.seed,
            load=chosen.load,
            alone=chosen.alone,
            starts_every_hours=chosen.starts,
        ),
        screen=sys.stderr if sys.stderr.isatty() else None,
    )
    if chosen.save_trace is not None:
        simulation.save(chosen.save_trace, study.trace_csv)
    if chosen.pictures is not None:
        simulation.draw(study, folder=chosen.pictures)
    render = simulation.as_json if chosen.output == "json" else simulation.as_table
    return Output(text=render(study))
