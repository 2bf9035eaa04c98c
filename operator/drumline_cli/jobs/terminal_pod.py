"""Find the pod whose terminal runs a job's shell, and wait until it exists."""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from drumline.kube import errors
from drumline.kube.client import KubeClient
from drumline_api.conditions import Reason
from drumline_cli.cluster_access import refusal
from drumline_cli.errors import NotAnswered
from drumline_cli.jobs.follow import Json, Say, read_job, started_pods, state_line
from drumline_cli.suspension import write_suspend
from drumline_contract import plain

_PAUSE_SECONDS: Final = 1.0
_AT_REST: Final = frozenset({"Succeeded", "Failed", "Suspended"})


def has_terminal(job: Json) -> bool:
    """Return whether its command runs on a terminal of its pod (`template.tty`)."""
    spec = cast("Json", job.get("spec") or {})
    template = cast("dict[str, Any]", spec.get("template") or {})
    return template.get("tty") is True


async def resume_idle(client: KubeClient, job: Json, *, say: Say) -> None:
    """Resume a job that was suspended because nobody used its terminal. Skip other jobs.

    Args:
        client: sends the requests.
        job: the TrainingJob.
        say: prints a line for the user.

    Raises:
        NotAnswered: the user may not resume it.
    """
    name, namespace = str(job["metadata"]["name"]), str(job["metadata"]["namespace"])
    status = cast("Json", job.get("status") or {})
    is_idle = (status.get("phase"), status.get("reason")) == ("Suspended", Reason.IDLE_GPUS)
    if not is_idle or job["spec"].get("suspend") or _is_changed(job):
        return
    say(f"{name} was suspended: {plain(str(status.get('message') or ''))}")
    try:
        await write_suspend(client, name=name, namespace=namespace, suspend=False)
    except errors.KubeError as error:
        raise NotAnswered(
            refusal(error, what=f"trainingjob {namespace}/{name}", verb="resume")
        ) from None


def _is_changed(job: Json) -> bool:
    """Return whether its spec changed after the operator wrote the status, as on resume."""
    status = cast("Json", job.get("status") or {})
    generation = job["metadata"].get("generation")
    return generation is not None and status.get("observedGeneration") != generation


async def wait_for_terminal(client: KubeClient, job: Json, *, say: Say) -> str:
    """Wait for the running pod and return its name. Print what the job waits for.

    Args:
        client: sends the requests.
        job: the TrainingJob.
        say: prints a line for the user.

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
        if status.get("phase") in _AT_REST and not _is_changed(raw):
            raise NotAnswered(
                f"{name} has no terminal: {line}. drumline resume {name} -n {namespace} queues a"
                f" suspended job again; drumline clone {name} -n {namespace} creates a new job from"
                " it"
            )
        if line != last:
            last = line
            say(line)
        await asyncio.sleep(_PAUSE_SECONDS)
