"""Read the last log lines of a job's pods before they are deleted: at its end, and at incidents."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from drumline.kube import codec, errors, reads
from drumline.kube.client import KubeClient
from drumline.kube.kinds import PODS
from drumline.kube.request import Request, Sending, Verb
from drumline.kube.retry import ONCE
from drumline.kube.views import PodPhase, PodView
from drumline.telemetry import logs
from drumline_addons.archive.documents import ArchivableJob
from drumline_addons.archive.layout import NOT_READ
from drumline_api.base import LABEL_INDEX, LABEL_JOB_UID

log = logs.get("drumline_addons.archive.pod_logs")

LINES: Final = 200
MOST_BYTES: Final = 64 * 1024
"""Maximum per pod."""
MOST_PODS: Final = 64
_CONTAINER: Final = "trainer"
_ANSWER_BYTES: Final = 2**20
_READS_AT_ONCE: Final = 8
_SENDING: Final = Sending(retry=ONCE, deadline_seconds=10.0)
"""Timeout. The kubelet of a lost node does not answer, and other pods and jobs wait meanwhile."""


async def last_lines(client: KubeClient, job: ArchivableJob) -> bytes:
    """Return the last lines of every pod below a heading, as `tail` shows several files.

    If there are more pods than `MOST_PODS`, failed pods come first. The result is empty if no pod
    is left. A pod whose log cannot be read shows the reason instead.

    Args:
        client: client to read pods and logs.
        job: job of the pods.
    """
    try:
        listed = await reads.list_all(
            client, PODS, namespace=job.namespace, label_selector=f"{LABEL_JOB_UID}={job.uid}"
        )
        pods = [codec.pod(raw) for raw in listed]
    except (errors.KubeError, codec.Undecodable) as error:
        log.warning("pods_not_read", job=f"{job.namespace}/{job.name}", why=str(error))
        return b""
    at_once = asyncio.Semaphore(_READS_AT_ONCE)

    async def read(pod: PodView) -> bytes:
        async with at_once:
            return _headed(pod, await _tail(client, pod))

    return b"\n".join(await asyncio.gather(*map(read, chosen(pods))))


def chosen(pods: Sequence[PodView]) -> list[PodView]:
    """Return at most `MOST_PODS` by index.

    If there are more, prefer failed pods and the first ones.
    """
    by_index = sorted(pods, key=_index)
    failed_first = sorted(by_index, key=lambda pod: pod.phase is not PodPhase.FAILED)
    return sorted(failed_first[:MOST_PODS], key=_index)


def _index(pod: PodView) -> tuple[int, str]:
    index = pod.labels.get(LABEL_INDEX, "")
    return (int(index) if index.isdecimal() else 0, pod.name)


async def _tail(client: KubeClient, pod: PodView) -> bytes:
    request = Request(
        verb=Verb.GET,
        resource=PODS,
        path=PODS.path(namespace=pod.namespace, name=pod.name, subresource="log"),
        query={
            "container": _CONTAINER,
            "tailLines": str(LINES),
            "limitBytes": str(_ANSWER_BYTES),
            "timestamps": "true",
        },
        sending=_SENDING,
    )
    try:
        return (await client.send(request))[-MOST_BYTES:]
    except errors.KubeError as error:
        return NOT_READ + f"{error})\n".encode()


def _headed(pod: PodView, lines: bytes) -> bytes:
    return f"==> {pod.name} on {pod.node_name or 'no node'} <==\n".encode() + lines
