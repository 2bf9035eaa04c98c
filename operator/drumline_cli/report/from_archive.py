"""The job and the events of a report, from the archive."""

from __future__ import annotations

import time

import msgspec

from drumline_addons.archive.reading import EndedJob
from drumline_api.load import ApiError
from drumline_cli.errors import NotAnswered
from drumline_cli.formatting import clock, many, moment
from drumline_cli.report.job_input import JobInput, job_input
from drumline_contract import plain


def read(ended: EndedJob, *, earlier: int = 0) -> JobInput:
    """Return a job as it was when it ended.

    Args:
        ended: the job.
        earlier: how many jobs of the same name ended before it.

    Raises:
        NotAnswered: this version cannot read it.
    """
    remarks = [f"From the archive, as of {_clock(ended.archived_at)}."]
    if ended.deleted_at is not None:
        remarks.append(f"It was deleted before it ended, at {_clock(ended.deleted_at)}.")
    if earlier:
        remarks.append(f"{many(earlier, 'earlier job')} of this name ended before.")
    job, *events = (msgspec.json.decode(item) for item in ended.items)
    try:
        return job_input(
            job,
            events=events,
            as_of=moment(ended.deleted_at or ended.archived_at) or time.time(),
            remarks=tuple(remarks),
        )
    except ApiError as error:
        raise NotAnswered(
            f"this version of drumline cannot read {ended.path}: {plain(str(error))}"
        ) from None


def _clock(text: str) -> str:
    at = moment(text)
    return plain(text) if at is None else clock(at)
