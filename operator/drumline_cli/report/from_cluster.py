"""A job and its events from the API server, with the reader's own kubeconfig and rights."""

from __future__ import annotations

import time
from typing import Any

from drumline.kube import errors, reads
from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials
from drumline.kube.kinds import EVENTS, TRAINING_JOBS
from drumline_api.load import ApiError
from drumline_cli.cluster_access import cluster_client, missing_job, not_answered, refusal
from drumline_cli.errors import NotAnswered
from drumline_cli.report.job_input import JobInput, job_input
from drumline_contract import plain


async def read(credentials: Credentials, *, job: str, namespace: str | None) -> JobInput:
    """Return the job of this name with the events about it.

    Args:
        credentials: How to reach the API server.
        job: Its name.
        namespace: Its namespace; None takes that of `credentials`.

    Raises:
        NotAnswered: there is no such job, it may not be read, or the server does not answer.
    """
    place = namespace or credentials.namespace
    async with cluster_client(credentials) as client:
        raw = await _job(client, job=job, namespace=place)
        events, remarks = await _events(client, job=job, namespace=place)
    try:
        return job_input(raw, events=events, as_of=time.time(), remarks=remarks)
    except ApiError as error:
        raise NotAnswered(
            f"this version of drumline cannot read trainingjob {place}/{job}: {plain(str(error))}"
        ) from None


async def _job(client: KubeClient, *, job: str, namespace: str) -> dict[str, Any]:
    try:
        return await reads.get_document(client, TRAINING_JOBS, name=job, namespace=namespace)
    except errors.NotFound as error:
        raise NotAnswered(missing_job(error, job=job, namespace=namespace)) from None
    except errors.KubeError as error:
        raise not_answered(error, what=f"trainingjob {namespace}/{job}") from None


async def _events(
    client: KubeClient, *, job: str, namespace: str
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return the events about the job. Add a remark if they cannot be read."""
    try:
        listed = await reads.list_all(
            client,
            EVENTS,
            namespace=namespace,
            field_selector=f"regarding.kind=TrainingJob,regarding.name={job}",
        )
    except errors.KubeError as error:
        return [], (f"Events are missing here: {refusal(error, what='they')}.",)
    return [reads.document(event) for event in listed], ()
