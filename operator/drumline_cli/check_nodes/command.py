"""Runs `drumline check-nodes`: makes the job, waits for it, writes what it found to the pool."""

from __future__ import annotations

import argparse
import asyncio
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from drumline.kube import errors, reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.kinds import GPU_POOLS, TRAINING_JOBS
from drumline.lifecycle.model.timestamps import timestamp
from drumline.overview.nodes import node_rows
from drumline_cli.check_nodes.job import check_job, nodes_to_check
from drumline_cli.check_nodes.results import CheckResult, node_health, results_in, table
from drumline_cli.cluster_access import chosen_credentials, cluster_client, refusal
from drumline_cli.commands import Output
from drumline_cli.errors import NotAnswered
from drumline_cli.jobs.command import random_letters, say
from drumline_cli.jobs.follow import Json, read_job, state_line
from drumline_cli.jobs.log_selection import LogSelection
from drumline_cli.jobs.written import written_lines
from drumline_cli.overview.read import WantedKinds, from_cluster
from drumline_cli.run.submission import create_job

_PAUSE_SECONDS: Final = 1.0
_ENDED: Final = frozenset({"Succeeded", "Failed"})


def run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """Check the nodes, and write what was found.

    Raises:
        CommandError: no node is idle, the cluster refuses, or the job did not end in time.
    """
    credentials = chosen_credentials(chosen, environment)
    namespace: str = chosen.namespace or credentials.namespace
    name = f"check-{random_letters()}"

    async def check() -> tuple[CheckResult, ...]:
        _end_with_a_signal()
        # Nodes are required: without them no idle node can be found.
        wanted = WantedKinds(namespace=None, nodes=True)
        cluster = await from_cluster(credentials, wanted, own=namespace)
        for remark in cluster.remarks:
            say(remark)
        nodes = nodes_to_check(node_rows(cluster), pool=chosen.pool, names=chosen.nodes)
        manifest = check_job(
            name, nodes, queue=chosen.queue, image=chosen.image, device=chosen.device
        )
        async with cluster_client(credentials) as client:
            # The chart's userPolicy accepts a job only with its sender.
            manifest["spec"]["user"] = (await reads.self_review(client)).username or None
            await create_job(client, manifest, (), namespace=namespace, say=say)
            try:
                results = await _results(client, job=name, namespace=namespace, seconds=chosen.wait)
            finally:
                # Delete the job even after an error, because it holds GPUs.
                await writes.delete(client, TRAINING_JOBS, name=name, uid=None, namespace=namespace)
            # Users who may not change the pool can still see the results.
            if not chosen.report_only:
                await _write(client, chosen.pool, results)
            return results

    try:
        results = asyncio.run(check())
    except errors.KubeError as error:
        raise NotAnswered(
            refusal(error, what=f"check of pool {chosen.pool}", verb="make")
        ) from None
    except asyncio.CancelledError:
        raise NotAnswered(f"the check of pool {chosen.pool} was stopped") from None
    # Exit code 1 lets scripts react to a failed node.
    failed = any(result.failed for result in results)
    return Output(text=table(results), exit_code=1 if failed else 0)


def _end_with_a_signal() -> None:
    """Delete the job also when the pod of a CronJob is stopped. Process 1 ignores the signal."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - called in a task
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


async def _results(
    client: KubeClient, *, job: str, namespace: str, seconds: float
) -> tuple[CheckResult, ...]:
    """Return the job's results after it has ended.

    Raises:
        NotAnswered: it did not end in time, or it failed.
    """
    last, raw, deadline = "", Json(), time.monotonic() + seconds
    places: tuple[str, ...] = ()
    while True:
        raw = await read_job(client, job=job, namespace=namespace)
        status = cast("Json", raw.get("status") or {})
        if (line := state_line(status)) != last:
            last = line
            say(line)
        # The assignment disappears at the end, so the last one is kept.
        places = _places(status) or places
        if status.get("phase") in _ENDED:
            break
        if time.monotonic() > deadline:
            raise NotAnswered(f"the job has not ended after {seconds:.0f} s: {line}")
        await asyncio.sleep(_PAUSE_SECONDS)
    if status["phase"] == "Failed":
        raise NotAnswered(f"the check failed to run: {last}")
    uid = str(raw["metadata"]["uid"])
    # The first pod prints the results of all pods.
    selection = LogSelection(index="0")
    lines = await written_lines(client, selection, uid=uid, namespace=namespace)
    return results_in((line.text for line in lines), nodes=places)


async def _write(client: KubeClient, pool: str, results: Sequence[CheckResult]) -> None:
    """Tell the pool; somebody may change it at the same time, so a conflict is tried again."""
    for attempt in (1, 2, 3):
        raw = await reads.get_document(client, GPU_POOLS, name=pool)
        before = cast("Json", raw["spec"].get("nodeHealth") or {})
        suspects = [entry["node"] for entry in raw.get("status", {}).get("nodeHealth") or ()]
        after = node_health(before, results, suspects=suspects, at=timestamp(time.time()))
        # An unchanged list needs no write and no rights.
        if after.get("checked") == (before.get("checked") or []):
            return
        # The version makes the server reject a lost update.
        version = raw["metadata"]["resourceVersion"]
        body: dict[str, Any] = {
            "metadata": {"resourceVersion": version},
            "spec": {"nodeHealth": after},
        }
        try:
            await writes.merge_patch(client, GPU_POOLS, name=pool, body=body)
        except errors.Conflict:
            if attempt == 3:
                raise
        else:
            return


def _places(status: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the nodes of the job's pods, by index."""
    places = cast("Json", status.get("assignment") or {})
    prefix = str(places.get("prefix") or "")
    return tuple(prefix + str(rest) for rest in places.get("nodes") or ())
