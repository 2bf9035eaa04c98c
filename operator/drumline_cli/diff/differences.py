"""Two jobs beside each other: the fields of their specs that differ, and what they came to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import msgspec

from drumline_api.trainingjob import TrainingJob
from drumline_cli.formatting import duration, percent
from drumline_cli.report.job_input import JobInput
from drumline_cli.report.model import JobReport
from drumline_contract import plain

Section = Literal["spec", "outcome"]
_MOST_FIELDS: Final = 10_000
"""Maximum number of fields per spec. Overrides are a tenant's text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One line; None: that job has no such field, or nothing is known of it.

    Attributes:
        section: what it is a line of: what was asked for, or what became of it.
        field: its path in the spec, or the name of the figure.
        left: what the first job has.
        right: what the second has.
    """

    section: Section
    field: str
    left: str | None
    right: str | None


def differences(
    left: tuple[JobInput, JobReport], right: tuple[JobInput, JobReport]
) -> tuple[Difference, ...]:
    """Spec fields that differ, by name; then every line of the outcomes, equal ones too.

    Fields that neither job sets to something else than their default are equal.
    """
    asked = [dict(_fields(each.job)) for each, _ in (left, right)]
    became = [dict(_outcome(each.job, report)) for each, report in (left, right)]
    fields = _compared_fields(asked[0], asked[1], section="spec")
    return (
        *sorted((each for each in fields if each.left != each.right), key=lambda each: each.field),
        *_compared_fields(became[0], became[1], section="outcome"),
    )


def _compared_fields(
    left: Mapping[str, str], right: Mapping[str, str], *, section: Section
) -> Iterator[Difference]:
    for field in dict.fromkeys((*left, *right)):
        yield Difference(section=section, field=field, left=left.get(field), right=right.get(field))


def _fields(job: TrainingJob) -> Iterator[tuple[str, str]]:
    dumped = job.spec.model_dump(by_alias=True, exclude_none=True, mode="json")
    for number, (path, value) in enumerate(_leaves(dumped, path="")):
        if number == _MOST_FIELDS:
            return
        yield plain(path), plain(value)


def _leaves(value: Any, *, path: str) -> Iterator[tuple[str, str]]:
    """`template.env.LR` and the like: entries of a list go by their name where they have one."""
    match value:
        case dict():
            for key, below in cast("dict[str, Any]", value).items():
                yield from _leaves(below, path=f"{path}.{key}" if path else key)
        case list():
            for index, below in enumerate(cast("list[Any]", value)):
                name = (
                    cast("dict[str, Any]", below).get("name") if isinstance(below, dict) else None
                )
                yield from _leaves(below, path=f"{path}.{name or index}")
        case _:
            yield path, str(value)


def _outcome(job: TrainingJob, report: JobReport) -> Iterator[tuple[str, str]]:
    yield "phase", report.phase
    if report.timeline:
        since, until = report.timeline[0].begins_at, report.timeline[-1].ends_at
        yield "duration", duration(until - since)
    for fact in report.facts:
        yield fact.name.lower(), fact.value
    if report.goodput is not None:
        yield "goodput", percent(report.goodput)
    yield "restarts", str((job.status and job.status.restarts) or 0)
    yield "incidents", str(len(report.incidents))


class JobDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of two jobs by `drumline diff`.

    Attributes:
        kind: what this is.
        left: `namespace/name` of the first job.
        right: that of the second.
        rows: fields of the specs that differ, then every line of the outcomes.
    """

    # No default: it would be an optional field of the schema.
    kind: Literal["JobDifference"]
    left: str
    right: str
    rows: Sequence[Difference]


def as_json(names: Sequence[str], rows: Sequence[Difference]) -> str:
    """Return a JSON object, ending with a newline. Its field names are an interface: they stay."""
    document = JobDifference(kind="JobDifference", left=names[0], right=names[1], rows=rows)
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
