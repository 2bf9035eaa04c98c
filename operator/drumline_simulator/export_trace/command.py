"""Run `drumline export-trace FILE`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from drumline_cli.commands import Output
from drumline_cli.errors import BadInput
from drumline_cli.formatting import many
from drumline_cli.overview.chosen_cluster import cluster_of
from drumline_cli.overview.read import WantedKinds
from drumline_simulator.export_trace.trace_jobs import ExportedTrace, trace_of
from drumline_simulator.input.trace import write


def run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """Write the trace, and report what it contains and what it lacks.

    Raises:
        CommandError: the jobs cannot be read, or the file cannot be written.
    """
    cluster, _ = cluster_of(chosen, environment, WantedKinds(namespace=None, queues=True))
    trace = trace_of(cluster, anonymous=chosen.anonymous)
    try:
        chosen.trace.write_text(write(trace.jobs), encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{chosen.trace}: {error.strerror}") from None
    return Output(text="".join(f"{line}\n" for line in (*_summary(trace), *cluster.remarks)))


def _summary(trace: ExportedTrace) -> list[str]:
    lines = [f"{many(len(trace.jobs), 'job')} written"]
    if trace.never_ran:
        lines.append(
            f"{many(trace.never_ran, 'job')} left out, because their GPU-time is not known yet"
        )
    if trace.cut:
        lines.append(
            f"{many(trace.cut, 'job')} still running without a known end: written with the run"
            " time so far"
        )
    return lines
