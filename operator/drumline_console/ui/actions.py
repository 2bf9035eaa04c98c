"""Perform the actions of a job's buttons: each has a form in `action_pages`, and a write."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from drumline_cli.errors import BadInput
from drumline_cli.jobs.clone import cloned
from drumline_cli.jobs.command import fresh_name
from drumline_cli.jobs.named_job import NamedJob
from drumline_cli.suspension import values_to_write
from drumline_console.ui import action_pages
from drumline_console.ui.cluster_source import ClusterSource
from drumline_console.ui.links import beside_path

Fields = Mapping[str, str]
MOST_CHANGES: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAction:
    """An action on a job.

    Attributes:
        do: performs it. Returns the next path, relative to the action's address.
        ask: page that confirms it. None: its button is on the job's page.
    """

    do: Callable[[ClusterSource, NamedJob, Fields], Awaitable[str]]
    ask: Callable[[ClusterSource, NamedJob, Fields], Awaitable[str]] | None = None


def _suspends(*, suspend: bool) -> JobAction:
    async def write(source: ClusterSource, job: NamedJob, _fields: Fields) -> str:
        for value in values_to_write(await source.manifest(job), suspend=suspend):
            await source.change(job, {"suspend": value})
        return beside_path(job.name)

    return JobAction(do=write)


async def _ask_delete(source: ClusterSource, job: NamedJob, _fields: Fields) -> str:
    return action_pages.delete(await source.job(job))


async def _delete(source: ClusterSource, job: NamedJob, fields: Fields) -> str:
    uid = fields.get("uid", "")
    if not uid:
        raise BadInput("the request does not identify the job: open its page again")
    await source.delete(job, uid=uid)
    return action_pages.UP


async def _ask_priority(source: ClusterSource, job: NamedJob, _fields: Fields) -> str:
    return action_pages.priority(await source.job(job), await source.cluster())


async def _set_priority(source: ClusterSource, job: NamedJob, fields: Fields) -> str:
    await source.change(job, {"priorityClassName": fields.get("priority", "").strip() or None})
    return beside_path(job.name)


async def _ask_clone(source: ClusterSource, job: NamedJob, fields: Fields) -> str:
    name = fields.get("name", "").strip() or fresh_name(job.name)
    changes = _changes(fields)
    manifest = cloned(await source.manifest(job), name=name, changes=changes, command=())
    return action_pages.clone(job, manifest, changes=changes)


async def _clone(source: ClusterSource, job: NamedJob, fields: Fields) -> str:
    name = fields.get("name", "").strip()
    if not name:
        raise BadInput("the copy needs a name")
    raw = await source.manifest(job)
    await source.clone(job, cloned(raw, name=name, changes=_changes(fields), command=()))
    return beside_path(name)


def _changes(fields: Fields) -> list[str]:
    lines = [line.strip() for line in fields.get("changes", "").splitlines()]
    changes = [line for line in lines if line]
    if len(changes) > MOST_CHANGES:
        raise BadInput(f"more than {MOST_CHANGES} changes: write a manifest file instead")
    return changes


ACTIONS: Final[Mapping[str, JobAction]] = {
    "suspend": _suspends(suspend=True),
    "resume": _suspends(suspend=False),
    "delete": JobAction(ask=_ask_delete, do=_delete),
    "priority": JobAction(ask=_ask_priority, do=_set_priority),
    "clone": JobAction(ask=_ask_clone, do=_clone),
}
