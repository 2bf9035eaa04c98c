"""The job and the events of a report, from files."""

from __future__ import annotations

from collections.abc import Sequence

from drumline.api.base import GROUP
from drumline.api.load import ApiError
from drumline.api.trainingjob import TrainingJob
from drumline.cli.errors import BadInput
from drumline.cli.manifests import Document, documents
from drumline.cli.report.job_input import Subject, subject


def read(names: Sequence[str], *, job: str | None, namespace: str | None) -> Subject:
    """The one job that the files hold under this name, with the events about it.

    Args:
        names: Files; `-` is standard input.
        job: Its name; None where there is but one job.
        namespace: Its namespace; None takes any.

    Raises:
        BadInput: a file is missing or malformed, or not exactly one job fits.
    """
    found = documents(names)
    chosen = _only(found, names=names, job=job, namespace=namespace)
    events = [document.raw for document in found if document.kind == "Event"]
    try:
        return subject(chosen.raw, events=events, as_of=chosen.as_of)
    except ApiError as error:
        raise chosen.blame(error.path, str(error)) from None


def _only(
    found: list[Document], *, names: Sequence[str], job: str | None, namespace: str | None
) -> Document:
    where = ", ".join(names)
    jobs = {document.place: document for document in found if _is_job(document)}
    if not jobs:
        kinds = ", ".join(sorted({document.kind or "no kind" for document in found}))
        raise BadInput(f"{where}: no TrainingJob of {GROUP} in it, but {kinds or 'nothing'}")
    fitting = [
        document
        for (its_namespace, its_name), document in jobs.items()
        if job in {None, its_name} and namespace in {None, its_namespace}
    ]
    if len(fitting) == 1:
        return fitting[0]
    held = ", ".join(f"{its_namespace}/{its_name}" for its_namespace, its_name in sorted(jobs))
    if fitting:
        raise BadInput(f"{where}: several jobs fit, name one of them: {held}")
    raise BadInput(f"{where}: no such job in it, but {held}")


def _is_job(document: Document) -> bool:
    return document.kind == TrainingJob.KIND and document.group == GROUP
