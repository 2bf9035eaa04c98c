"""A job and its events from the API server, with the reader's own kubeconfig and rights."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from drumline.api.load import ApiError
from drumline.cli.errors import BadInput, NotAnswered
from drumline.cli.report.job_input import JobInput, job_input
from drumline.kube import errors, reads
from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials, NoCredentials, discover, from_kubeconfig
from drumline.kube.kinds import EVENTS, TRAINING_JOBS
from drumline.kube.retry import RetryPolicy
from drumline_trainer.contract import plain

_RETRY: Final = RetryPolicy(attempts=2)
"""Somebody waits at a terminal."""


def find_credentials(
    environment: Mapping[str, str], *, kubeconfig: Path | None, context: str | None
) -> Credentials:
    """A named kubeconfig, else the pod's service account, else the usual kubeconfig.

    Raises:
        BadInput: none of them is usable.
    """
    try:
        if context is not None:
            return from_kubeconfig(kubeconfig, context=context)
        return discover(environment, kubeconfig=kubeconfig)
    except NoCredentials as error:
        raise BadInput(
            f"no usable kubeconfig: {plain(str(error))}; set KUBECONFIG, or name one with"
            " --kubeconfig"
        ) from None


async def read(credentials: Credentials, *, job: str, namespace: str | None) -> JobInput:
    """The job of this name with the events about it.

    Args:
        credentials: How to reach the API server.
        job: Its name.
        namespace: Its namespace; None takes that of `credentials`.

    Raises:
        NotAnswered: there is no such job, it may not be read, or the server does not answer.
    """
    place = namespace or credentials.namespace
    async with KubeClient(credentials, retry=_RETRY, user_agent="drumline-cli") as client:
        raw = await _job(client, job=job, namespace=place)
        events, remarks = await _events(client, job=job, namespace=place)
    try:
        return job_input(raw, events=events, as_of=time.time(), remarks=remarks)
    except ApiError as error:
        raise NotAnswered(
            f"trainingjob {place}/{job} is not one that this version of drumline can read:"
            f" {plain(str(error))}"
        ) from None


async def _job(client: KubeClient, *, job: str, namespace: str) -> dict[str, Any]:
    try:
        body = await reads.get(client, TRAINING_JOBS, name=job, namespace=namespace)
    except errors.NotFound as error:
        raise NotAnswered(_missing(error, job=job, namespace=namespace)) from None
    except errors.KubeError as error:
        raise NotAnswered(_refusal(error, what=f"trainingjob {namespace}/{job}")) from None
    except ValueError as error:
        raise BadInput(str(error)) from None
    return cast("dict[str, Any]", json.loads(body))


async def _events(
    client: KubeClient, *, job: str, namespace: str
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """The events about the job; a remark where they cannot be read."""
    try:
        listed = await reads.list_all(
            client,
            EVENTS,
            namespace=namespace,
            field_selector=f"regarding.kind=TrainingJob,regarding.name={job}",
        )
    except errors.KubeError as error:
        return [], (f"Events are missing here: {_refusal(error, what='they')}.",)
    return [cast("dict[str, Any]", json.loads(event)) for event in listed], ()


def _missing(error: errors.NotFound, *, job: str, namespace: str) -> str:
    if f'"{job}"' in error.message:
        return f"trainingjob {job!r} not found in namespace {namespace!r}"
    return "this cluster serves no TrainingJobs: Drumline's custom resources are not installed"


def _refusal(error: errors.KubeError, *, what: str) -> str:
    match error:
        case errors.Unauthorized():
            return f"{what}: the API server does not accept these credentials; log in again"
        case errors.Forbidden():
            return f"{what}: not allowed to read: {plain(error.message)}"
        case errors.Unreachable():
            return f"{what}: the API server does not answer: {plain(str(error))}"
        case _:
            return f"{what}: {plain(str(error))}"
