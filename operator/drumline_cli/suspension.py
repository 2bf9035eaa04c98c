"""Stops a job, or resumes it: what `spec.suspend` is written for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from drumline.kube import reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.kinds import TRAINING_JOBS
from drumline_api.conditions import Reason
from drumline_cli.errors import NotAnswered


async def write_suspend(client: KubeClient, *, name: str, namespace: str, suspend: bool) -> None:
    """Suspend or resume a job by one or more writes of `spec.suspend`.

    Args:
        client: sends the requests.
        name: name of the job.
        namespace: namespace of the job.
        suspend: new value of `spec.suspend`.

    Raises:
        NotAnswered: the job has ended, or is already suspended or resumed.
        KubeError: the user may not change the job, or it does not exist.
    """
    raw = await reads.get_document(client, TRAINING_JOBS, name=name, namespace=namespace)
    if nothing := nothing_to_do(raw, suspend=suspend):
        raise NotAnswered(f"trainingjob {namespace}/{name} {nothing}")
    for value in values_to_write(raw, suspend=suspend):
        await writes.merge_patch(
            client,
            TRAINING_JOBS,
            name=name,
            namespace=namespace,
            body={"spec": {"suspend": value}},
        )


def nothing_to_do(raw: Mapping[str, Any], *, suspend: bool) -> str:
    """Return why a job cannot be stopped or resumed, or empty text.

    Args:
        raw: the job as the API server prints it.
        suspend: what it is to be in the end.
    """
    job = f"{raw['metadata']['name']} -n {raw['metadata']['namespace']}"
    status = cast("Mapping[str, Any]", raw.get("status") or {})
    phase = str(status.get("phase") or "Pending")
    if phase == "Succeeded":
        return f"has ended (Succeeded); drumline clone {job} runs it again"
    if phase == "Failed":
        return f"has ended (Failed); drumline retry {job} starts it again"
    is_suspended = bool(raw.get("spec", {}).get("suspend", False))
    if suspend and is_suspended:
        return f"is suspended already; drumline resume {job} queues it again"
    is_idle = status.get("reason") == Reason.IDLE_GPUS
    if not suspend and not is_suspended and phase != "Suspended" and not is_idle:
        return f"is not suspended: {phase}"
    return ""


def values_to_write(raw: Mapping[str, Any], *, suspend: bool) -> tuple[bool, ...]:
    """Return the values to write to a job's `spec.suspend`, one after the other.

    Of a job that the operator has suspended for its idle GPUs it is false already, and any change
    of the spec resumes it: then it is true in between.

    Args:
        raw: the job as the API server prints it.
        suspend: what it is to be in the end.
    """
    status = cast("Mapping[str, Any]", raw.get("status") or {})
    is_false = not raw.get("spec", {}).get("suspend", False)
    if not suspend and is_false and status.get("reason") == Reason.IDLE_GPUS:
        return (True, False)
    return (suspend,)
