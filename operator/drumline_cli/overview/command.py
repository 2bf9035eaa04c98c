"""Runs the commands that show rows: reads what each needs, makes its rows, and prints them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace

from drumline.overview.jobs import job_rows, lines, positions
from drumline.overview.nodes import node_rows
from drumline.overview.objects import ClusterObjects, JobObject
from drumline.overview.pool_units import PoolUnits
from drumline.overview.queues import queue_rows, share_rows
from drumline.overview.rows import JobRow, NodeRow, OverviewRow, QueueRow
from drumline.overview.usage import GROUPS, usage_rows, with_budgets
from drumline.overview.why import why_card
from drumline.overview.workloads import workload_uses
from drumline_cli.commands import Output
from drumline_cli.errors import BadInput
from drumline_cli.options import acts_as_another
from drumline_cli.overview import tables, why_workload
from drumline_cli.overview.chosen_cluster import cluster_of
from drumline_cli.overview.json_output import as_json
from drumline_cli.overview.period import begin_of
from drumline_cli.overview.read import WantedKinds, only_job
from drumline_cli.overview_arguments import ARCHIVE_VARIABLE

MOST_NAMES = 8
"""Names of other pools in a message."""
_GROUP = "drumline.dev"
"""`api.base` has it, too, and takes half a second to import."""


def run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """Return the rows of the chosen command.

    Raises:
        CommandError: there is no such job, the cluster refuses, or an argument cannot be used.
    """
    # Each command reads only the kinds that its rows need, so that users need few rights.
    match chosen.command:
        case "list":
            return _list(chosen, environment)
        case "queue":
            return _queue(chosen, environment)
        case "why":
            return _why(chosen, environment)
        case "nodes":
            return _nodes(chosen, environment)
        case "share":
            cluster, _ = cluster_of(chosen, environment, WantedKinds(namespace=None, queues=True))
            rows = share_rows(cluster)
            table = tables.shares(rows, now=cluster.as_of)
            return output_of(chosen, cluster, rows, table=table)
        case _:
            return _usage(chosen, environment)


def _list(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    cluster, own, rows = wanted_jobs(chosen, environment)
    everywhere = bool(chosen.all_namespaces)
    # A wrong namespace or queue must not look like one without jobs.
    where = f" of queue {chosen.queue}" if chosen.queue else ""
    where += "" if everywhere else f" in namespace {own}"
    table = tables.jobs(rows, now=cluster.as_of, namespaces=everywhere, where=where)
    return output_of(chosen, cluster, rows, table=table)


def wanted_jobs(
    chosen: argparse.Namespace, environment: Mapping[str, str]
) -> tuple[ClusterObjects, str, tuple[JobRow, ...]]:
    """Return the cluster, the namespace, and the jobs of it and of the queue, or of all."""
    # A place in line counts the jobs of every namespace of the queue.
    cluster, own = cluster_of(chosen, environment, WantedKinds(namespace=None, queues=True))
    places = positions(lines(cluster.jobs, cluster.priorities))
    wanted = [
        job
        for job in cluster.jobs
        if (chosen.all_namespaces or job.metadata.namespace == own)
        and chosen.queue in (None, job.spec.queue)
    ]
    rows = job_rows(wanted, now=cluster.as_of, places=places, units=PoolUnits(cluster.pools))
    return cluster, own, rows


def _queue(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    cluster, _ = cluster_of(chosen, environment, WantedKinds(namespace=None, queues=True))
    rows = queue_rows(cluster, only=chosen.queue)
    # A typing mistake in a queue must not look like an empty queue.
    if chosen.queue is not None and not rows:
        known = ", ".join(sorted(queue.metadata.name for queue in cluster.queues)[:MOST_NAMES])
        raise BadInput(f"queue {chosen.queue!r} does not exist; queues: {known or 'none'}")
    return output_of(chosen, cluster, rows, table=tables.queues(rows, now=cluster.as_of))


def _why(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    # A slash names another kind of workload.
    if "/" in chosen.job:
        cluster, workload = why_workload.card_of(chosen, environment)
        table = why_workload.table(workload, now=cluster.as_of)
        return output_of(chosen, cluster, (workload,), table=table, kind=why_workload.KIND)
    # Nodes are optional here. Most users may not list them.
    wanted = WantedKinds(namespace=None, queues=True, places=True, pods=True)
    cluster, own = cluster_of(chosen, environment, wanted)
    card = why_card(cluster, only_job(cluster, namespace=own, name=chosen.job))
    return output_of(chosen, cluster, (card,), table=tables.why(card, now=cluster.as_of))


def _nodes(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    cluster, _ = cluster_of(chosen, environment, WantedKinds(namespace=None, nodes=True))
    rows = tuple(row for row in node_rows(cluster) if chosen.pool in (None, row.pool))
    pools = {pool.metadata.name for pool in cluster.pools}
    if chosen.pool is not None and not rows and pools and chosen.pool not in pools:
        known = ", ".join(sorted(pools)[:MOST_NAMES])
        raise BadInput(f"pool {chosen.pool!r} does not exist; pools: {known}")
    return output_of(chosen, cluster, rows, table=tables.nodes(rows))


def _usage(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    by = [name.strip() for name in chosen.by.split(",")]
    if unknown := [name for name in by if name not in GROUPS]:
        raise BadInput(f"unknown group {unknown[0]} in --by; want {', '.join(GROUPS)}")
    # Foreign pods belong to the usage, since they hold GPUs of the queue.
    wanted = WantedKinds(namespace=None, queues=True, pods=True)
    cluster, _ = cluster_of(chosen, environment, wanted)
    since = begin_of(chosen.since, now=cluster.as_of)
    jobs, remarks = _with_archived(cluster.jobs, chosen, environment, since=since)
    cluster = replace(cluster, remarks=(*cluster.remarks, *remarks))
    uses = workload_uses(cluster)
    rows = usage_rows(jobs, workloads=uses, by=by, since=since, now=cluster.as_of)
    # A budget belongs to a queue, so it fits only rows by queue.
    if by == ["queue"]:
        rows = with_budgets(rows, cluster.queues, now=cluster.as_of)
    return output_of(chosen, cluster, rows, table=tables.usage(rows, by=by))


def _with_archived(
    jobs: Sequence[JobObject],
    chosen: argparse.Namespace,
    environment: Mapping[str, str],
    *,
    since: float | None,
) -> tuple[Sequence[JobObject], tuple[str, ...]]:
    """Return the jobs of the cluster and those of the archive that are in it no more. Remarks."""
    if not (chosen.archive or environment.get(ARCHIVE_VARIABLE)):
        return jobs, ()
    if acts_as_another(chosen):
        return jobs, ("The archive is left out: it knows no identity of the cluster (--as).",)
    from drumline_cli.archived_jobs import archived_jobs  # noqa: PLC0415 - 0.1 s without need

    archived = archived_jobs(chosen.archive, environment, since=since)
    # A job can be in the cluster and in the archive at the same time.
    present = {job.metadata.uid for job in jobs}
    ended = [each.job for each in archived.jobs if each.job.metadata.uid not in present]
    return (*jobs, *ended), archived.remarks


def output_of(
    chosen: argparse.Namespace,
    cluster: ClusterObjects,
    rows: tables.Rows,
    *,
    table: str,
    kind: str | None = None,
) -> Output:
    # A program reads the remarks from the JSON, so nothing else is printed.
    """Return the rows as JSON, or their table with the remarks on the cluster.

    Args:
        chosen: parsed arguments.
        cluster: objects that were read.
        rows: rows to show.
        table: text of the table.
        kind: kind of the JSON document. None: the name of the command.
    """
    if chosen.output == "json":
        return Output(text=as_json(kind or chosen.command, rows, cluster))
    if chosen.output == "name":
        return Output(text="".join(f"{_named(row)}\n" for row in rows))
    remarks = "".join(f"{remark}\n" for remark in cluster.remarks)
    return Output(text=table + remarks)


def _named(row: OverviewRow) -> str:
    """Return the object of a row as kubectl names it."""
    match row:
        case JobRow():
            return f"trainingjob.{_GROUP}/{row.name}"
        case QueueRow():
            return f"trainingqueue.{_GROUP}/{row.queue}"
        case NodeRow():
            return f"node/{row.node}"
        case _:
            raise BadInput("-o name prints jobs, queues and nodes only")
