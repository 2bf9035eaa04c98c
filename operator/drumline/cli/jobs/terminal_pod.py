"""The pod whose terminal a job's shell is on: which one, and when it is there."""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from drumline.cli.errors import NotAnswered
from drumline.cli.jobs.follow import Json, Say, read_job, started_pods, state_line
from drumline.kube.client import KubeClient

_PAUSE_SECONDS: Final = 1.0


def has_terminal(job: Json) -> bool:
    """Whether its command is on a terminal of its pod (`template.tty`)."""
    spec = cast("Json", job.get("spec") or {})
    template = cast("dict[str, Any]", spec.get("template") or {})
    return template.get("tty") is True


async def wait_for_terminal(client: KubeClient, job: Json, *, say: Say) -> str:
    """The name of the running pod, once there is one; what the job waits for is said.

    Raises:
        NotAnswered: the job has ended or is suspended, or cannot be read.
    """
    name, namespace = str(job["metadata"]["name"]), str(job["metadata"]["namespace"])
    last = ""
    while True:
        raw = await read_job(client, job=name, namespace=namespace)
        status = cast("Json", raw.get("status") or {})
        for pod in await started_pods(client, uid=str(raw["metadata"]["uid"]), namespace=namespace):
            if pod.is_running:
                return pod.name
        line = state_line(status)
        if status.get("phase") in {"Succeeded", "Failed", "Suspended"}:
            raise NotAnswered(
                f"{name} has no terminal: {line}. drumline resume {name} queues a suspended job"
                f" again; a new one of what it was: drumline clone {name}"
            )
        if line != last:
            last = line
            say(line)
        await asyncio.sleep(_PAUSE_SECONDS)
