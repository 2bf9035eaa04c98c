"""The job and the events of a report, from files."""

from __future__ import annotations

from collections.abc import Sequence

from drumline_api.base import GROUP
from drumline_api.load import ApiError
from drumline_api.trainingjob import TrainingJob
from drumline_cli.errors import BadInput
from drumline_cli.manifests import ManifestDocument, read_manifests
from drumline_cli.report.job_input import JobInput, job_input


def read(names: Sequence[str], *, job: str | None, namespace: str | None) -> JobInput:
    """Return the one job that the files hold under this name, with the events about it.

    Args:
        names: Files; `-` is standard input.
        job: Its name; None where there is but one job.
        namespace: Its namespace; None takes any.

    Raises:
        BadInput: a file is missing or malformed, or not exactly one job fits.
    """
    manifests = read_manifests(names)
    chosen = _only(manifests, names=names, job=job, namespace=namespace)
    events = [manifest.raw for manifest in manifests if manifest.kind == "Event"]
    try:
        return job_input(chosen.raw, events=events, as_of=chosen.as_of)
    except ApiError as error:
        raise chosen.blame(error.path, str(error)) from None


def _only(
    manifests: list[ManifestDocument],
    *,
    names: Sequence[str],
    job: str | None,
    namespace: str | None,
) -> ManifestDocument:
    where = ", ".join(names)
    jobs = {manifest.namespaced_name: manifest for manifest in manifests if _is_job(manifest)}
    if not jobs:
        kinds = ", ".join(sorted({manifest.kind or "no kind" for manifest in manifests}))
        raise BadInput(f"{where}: no TrainingJob of {GROUP} found, but {kinds or 'nothing'}")
    fitting = [
        manifest
        for (its_namespace, its_name), manifest in jobs.items()
        if job in {None, its_name} and namespace in {None, its_namespace}
    ]
    if len(fitting) == 1:
        return fitting[0]
    held = ", ".join(f"{its_namespace}/{its_name}" for its_namespace, its_name in sorted(jobs))
    if fitting:
        raise BadInput(f"{where}: several jobs match; name one of them: {held}")
    raise BadInput(f"{where}: no such job found, but {held}")


def _is_job(manifest: ManifestDocument) -> bool:
    return manifest.kind == TrainingJob.KIND and manifest.group == GROUP
