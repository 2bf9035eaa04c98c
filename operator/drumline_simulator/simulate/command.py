"""Run `drumline simulate CLUSTER [TRACE]`: jobs on a virtual clock, under several policies."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Final, TextIO

from drumline_cli.commands import Output
from drumline_cli.errors import BadInput
from drumline_simulator.simulate import study as simulation
from drumline_simulator.simulate import week
from drumline_simulator.simulate.study import SimulationRequest

_LONGEST_DAYS: Final = 31
_FEWEST_NODES: Final = 16
"""A quarter of the nodes always exists, at least 4."""
_MOST_NODES: Final = 4096


def run(chosen: argparse.Namespace, _environment: Mapping[str, str]) -> Output:
    """Return the rendered comparison.

    Raises:
        BadInput: a file or a number is invalid.
    """
    _check(chosen)
    screen = sys.stderr if sys.stderr.isatty() else None
    if chosen.week:
        return _week(chosen, screen=screen)
    study = simulation.run_study(
        SimulationRequest(
            cluster=chosen.cluster,
            trace=chosen.trace,
            format=chosen.format,
            jobs=chosen.jobs,
            seed=chosen.seed,
            load=chosen.load,
            alone=chosen.alone,
            starts_every_hours=chosen.starts,
        ),
        screen=screen,
    )
    if chosen.save_trace is not None:
        simulation.save(chosen.save_trace, study.trace_csv)
    if chosen.pictures is not None:
        simulation.draw(study, folder=chosen.pictures)
    render = simulation.as_json if chosen.output == "json" else simulation.as_table
    return Output(text=render(study))


def _week(chosen: argparse.Namespace, *, screen: TextIO | None) -> Output:
    results = week.run_sides(nodes=chosen.nodes, days=chosen.days, seed=chosen.seed, screen=screen)
    if chosen.pictures is not None:
        simulation.write_pictures(chosen.pictures, lambda: week.pictures(results))
    render = week.as_json if chosen.output == "json" else week.as_table
    return Output(text=render(results))


def _check(chosen: argparse.Namespace) -> None:
    if chosen.week == (chosen.cluster is not None):
        raise BadInput("give a CLUSTER file, or --week without a file")
    if not 0 < chosen.days <= _LONGEST_DAYS:
        raise BadInput(f"--days must be above 0 and at most {_LONGEST_DAYS}, got {chosen.days:g}")
    if not _FEWEST_NODES <= chosen.nodes <= _MOST_NODES:
        raise BadInput(f"--nodes must be {_FEWEST_NODES} to {_MOST_NODES:,}, got {chosen.nodes}")
    if not 0 < chosen.load < float("inf"):
        raise BadInput(f"--load must be above 0, got {chosen.load:g}")
    if chosen.starts is not None and not chosen.starts > 0:
        raise BadInput(f"--starts must be above 0, got {chosen.starts:g}")
