"""Run `drumline top`: read and draw every few seconds, or once without a terminal."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace

from drumline.overview.jobs import job_rows, lines, positions
from drumline.overview.nodes import node_rows
from drumline.overview.objects import ClusterObjects
from drumline.overview.pool_units import PoolUnits
from drumline.overview.queues import queue_rows
from drumline.overview.workloads import workload_uses
from drumline_cli.commands import Output
from drumline_cli.errors import NotAnswered
from drumline_cli.overview.chosen_cluster import cluster_of
from drumline_cli.overview.read import WantedKinds
from drumline_console.top import live
from drumline_console.top.screen import TopRows, render


def run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """Draw until the user quits, or one screen if the output is not a terminal.

    Raises:
        CommandError: the first read fails, or an argument is invalid.
    """
    rows = read(chosen, environment)
    # Without a terminal one screen is printed, so that `watch` and pipes work.
    if chosen.once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        width = shutil.get_terminal_size((160, 40)).columns
        return Output(text="".join(f"{line}\n" for line in render(rows, width=width)))
    live.draw(rows, lambda: read(chosen, environment), every_seconds=chosen.interval)
    return Output(text="")


def read(chosen: argparse.Namespace, environment: Mapping[str, str]) -> TopRows:
    """Return the current rows. Users who may not list nodes get the other rows."""
    wanted = WantedKinds(namespace=None, queues=True, nodes=True, pods=True)
    try:
        cluster, _ = cluster_of(chosen, environment, wanted)
    # Most users may not list nodes. The other rows are still useful.
    except NotAnswered as refused:
        cluster, _ = cluster_of(chosen, environment, replace(wanted, nodes=False))
        return _rows(chosen, cluster, remarks=(str(refused),))
    return _rows(chosen, cluster)


def _rows(
    chosen: argparse.Namespace, cluster: ClusterObjects, *, remarks: tuple[str, ...] = ()
) -> TopRows:
    places = positions(lines(cluster.jobs, cluster.priorities))
    jobs = [job for job in cluster.jobs if chosen.queue in (None, job.spec.queue)]
    return TopRows(
        as_of=cluster.as_of,
        jobs=job_rows(jobs, now=cluster.as_of, places=places, units=PoolUnits(cluster.pools)),
        nodes=node_rows(cluster),
        queues=queue_rows(cluster, only=chosen.queue),
        workloads=[use for use in workload_uses(cluster) if chosen.queue in (None, use.queue)],
        remarks=(*cluster.remarks, *remarks),
    )
