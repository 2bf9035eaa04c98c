"""The cluster as the person at the terminal may see it: credentials, and refusals as sentences."""

from __future__ import annotations

import argparse
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from drumline.kube import errors, impersonation
from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials, NoCredentials, discover, from_kubeconfig
from drumline.kube.environment_proxy import proxy_for
from drumline.kube.kinds import is_label, is_subdomain
from drumline.kube.retry import RetryPolicy
from drumline_cli.errors import BadInput, NotAnswered, NotAnsweredYet, NotLoggedIn
from drumline_contract import plain

_RETRY: Final = RetryPolicy(attempts=2)
"""Somebody waits at a terminal."""
NOT_SERVED: Final = "the cluster has no TrainingJob resource; install Drumline's custom resources"


def chosen_credentials(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Credentials:
    """Return the credentials that `--kubeconfig`, `--context` and `--as` name.

    Raises:
        BadInput: there are none, or they cannot be used; or a name is not one.
    """
    _check_names(chosen)
    credentials = find_credentials(
        environment, kubeconfig=chosen.kubeconfig, context=chosen.context
    )
    try:
        asked = impersonation.headers(
            user=chosen.act_as, uid=chosen.act_as_uid, groups=chosen.act_as_groups
        )
    # Empty values mean that the user did not ask for impersonation.
    except ValueError as error:
        raise BadInput(f"--as: {error}") from None
    return replace(credentials, impersonation=asked) if asked else credentials


def _check_names(chosen: argparse.Namespace) -> None:
    # A wrong namespace is an empty list for the server, as if it had no jobs.
    namespace: str | None = getattr(chosen, "namespace", None)
    if namespace is not None and not is_label(namespace):
        raise BadInput(
            f"--namespace {plain(namespace)!r}: want lower case letters, digits and '-', at most 63"
        )
    job: str | None = getattr(chosen, "job", None)
    if job is not None:
        _check_job(job, typed=chosen.command == "why")


def _check_job(job: str, *, typed: bool) -> None:
    """Refuse a name that would be another path of the API server, such as `llama/status`.

    Args:
        job: name from the command line.
        typed: whether `TYPE/NAME` is a name too.
    """
    words = job.split("/")
    if all(map(is_subdomain, words)) and len(words) <= 1 + typed:
        return
    wrong = f"{plain(job)!r} is not a valid object name"
    # `list -o name` and kubectl print `trainingjob.drumline.dev/llama`.
    if len(words) > 1 and is_subdomain(words[-1]):
        raise BadInput(f"{wrong}; write the name alone: {words[-1]}")
    raise BadInput(f"{wrong}; want lower case letters, digits, '-' and '.'")


def find_credentials(
    environment: Mapping[str, str], *, kubeconfig: Path | None, context: str | None
) -> Credentials:
    """Return a named kubeconfig, or the pod's service account, or the usual kubeconfig.

    Args:
        environment: environment variables.
        kubeconfig: file from the command line.
        context: context from the command line.

    Raises:
        BadInput: none of them is usable.
    """
    try:
        # A named context always means a kubeconfig, even inside a pod.
        if context is not None:
            credentials = from_kubeconfig(kubeconfig, context=context)
        else:
            credentials = discover(environment, kubeconfig=kubeconfig)
    except NoCredentials as error:
        raise _unusable(error, environment, kubeconfig, context) from None
    # A pod's own API server is near. Its variables are those of its program's downloads.
    if credentials.proxy is not None or credentials.is_of_pod:
        return credentials
    try:
        return replace(credentials, proxy=proxy_for(credentials.server, environment))
    except ValueError as error:
        raise BadInput(str(error)) from None


def _unusable(
    error: NoCredentials,
    environment: Mapping[str, str],
    kubeconfig: Path | None,
    context: str | None,
) -> BadInput:
    # The remedy depends on the source that failed.
    remedy = "set KUBECONFIG, or use --kubeconfig"
    if kubeconfig is not None:
        remedy = "correct --kubeconfig, or set KUBECONFIG"
    elif environment.get("KUBECONFIG"):
        remedy = "correct KUBECONFIG, or use --kubeconfig"
    if context is not None:
        remedy = f"correct --context, or {remedy}"
    return BadInput(f"no usable kubeconfig: {plain(str(error))}; {remedy}")


@asynccontextmanager
async def cluster_client(credentials: Credentials) -> AsyncGenerator[KubeClient]:
    """Enter a client that gives up soon, and whose writes name every unknown field.

    Raises:
        BadInput: a certificate of the credentials cannot be used.
    """
    client = KubeClient(credentials, retry=_RETRY, user_agent="drumline-cli", strict=True)
    async with AsyncExitStack() as stack:
        # Certificates are read only here, when a connection needs them.
        try:
            await stack.enter_async_context(client)
        except NoCredentials as error:
            raise BadInput(f"no usable kubeconfig: {plain(str(error))}") from None
        yield client


def missing_job(error: errors.NotFound, *, job: str, namespace: str) -> str:
    """Return the message for a TrainingJob, or its CRD, that does not exist.

    Args:
        error: answer of the API server.
        job: name of the job.
        namespace: namespace of the job.
    """
    # The server's message quotes the name of a missing object.
    if f'"{job}"' in error.message:
        return f"trainingjob {job!r} not found in namespace {namespace!r}"
    return NOT_SERVED


def not_answered(error: errors.KubeError, *, what: str, verb: str = "read") -> NotAnswered:
    """Return `refusal` as an exception.

    Args:
        error: answer of the API server.
        what: what was requested.
        verb: Kubernetes verb that was refused.
    """
    said = refusal(error, what=what, verb=verb)
    # A page can then ask for another token.
    if isinstance(error, errors.Unauthorized):
        return NotLoggedIn(said)
    return NotAnsweredYet(said) if error.retryable else NotAnswered(said)


def refusal(error: errors.KubeError, *, what: str, verb: str = "read") -> str:
    """Return the message for a request that the API server rejected or did not answer.

    Args:
        error: what it answered.
        what: the object, as people call it.
        verb: what was asked for.
    """
    match error:
        case errors.Unauthorized():
            return f"{what}: the API server rejects these credentials; log in again"
        case errors.Forbidden():
            return f"{what}: not allowed to {verb}: {plain(error.message)}"
        case errors.Unreachable():
            return f"{what}: the API server does not respond: {plain(str(error))}"
        case _:
            return f"{what}: {plain(str(error))}"
