"""Select lines of a job's logs: those of one rank, or those around an incident.

The agent of a pod with several ranks tags every line with its rank (`[rank 3] ...`). Lines of a pod
with one rank have no tag. All of them belong to that rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, cast

from drumline_cli.errors import BadInput
from drumline_cli.formatting import moment
from drumline_cli.jobs.follow import Json, LogLine

NEWEST: Final = "incident"
_STAGES: Final = (
    "detectMilliseconds",
    "decideMilliseconds",
    "replaceMilliseconds",
    "rendezvousMilliseconds",
    "restoreMilliseconds",
    "firstStepMilliseconds",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSelection:
    """Selection of lines. Without conditions, all lines are shown.

    Attributes:
        tag: what the lines begin with.
        index: index of the only pod.
        begins: not before this moment, in seconds since the epoch.
        ends: not after this one.
    """

    tag: str = ""
    index: str | None = None
    begins: float | None = None
    ends: float | None = None

    @property
    def since(self) -> str:
        """The begin in whole seconds, as the API server takes it. Empty: the log's begin."""
        if self.begins is None:
            return ""
        # One second less, because the API server takes whole seconds.
        return datetime.fromtimestamp(self.begins - 1, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def keeps(self, line: LogLine) -> bool:
        """Return whether the line is shown. Lines without a time are: they report read errors."""
        if not line.at:
            return True
        # Cheap conditions first. Parsing a time is slower.
        if self.index not in (None, line.index) or not line.text.startswith(self.tag):
            return False
        at = moment(line.at)
        # A line without a readable time may be important, so it is kept.
        if at is None:
            return True
        return not (
            (self.begins is not None and at < self.begins)
            or (self.ends is not None and at > self.ends)
        )


def selection_of(
    job: Json, *, rank: int | None, around: str | None, seconds: float, now: float
) -> LogSelection:
    """Return the requested selection of this job.

    Args:
        job: the TrainingJob as the API server prints it.
        rank: the only rank; None: all.
        around: `incident` for the newest, its number (`3.0`), or a time; None: the whole log.
        seconds: so much before and after that.
        now: seconds since the epoch: an incident that is not over lasts until now.

    Raises:
        BadInput: the job has no such rank or incident.
    """
    tag, index = ("", None) if rank is None else _lines_of(job, rank)
    if around is None:
        return LogSelection(tag=tag, index=index)
    # The period covers the incident and a margin on both sides.
    begins, ends = _period(job, around, now=now)
    return LogSelection(tag=tag, index=index, begins=begins - seconds, ends=ends + seconds)


def _lines_of(job: Json, rank: int) -> tuple[str, str | None]:
    """Return the tag, and the only pod's index, of a rank's lines."""
    index = index_of_rank(job, rank)
    # With several ranks per pod, the agent tags each line.
    tagged = _ranks_per_pod(_fields(job, "spec")) > 1
    return (f"[rank {rank}] ", None) if tagged else ("", index)


def index_of_rank(job: Json, rank: int) -> str:
    """Return the index of the pod that a rank runs in.

    Args:
        job: the TrainingJob as the API server prints it.
        rank: where a launcher of the user's starts the ranks, the pod's position.

    Raises:
        BadInput: the job has no such rank.
    """
    spec, status = _fields(job, "spec"), _fields(job, "status")
    places = _fields(status, "assignment")
    pods = len(cast("list[str]", places.get("nodes") or [])) or int(spec.get("nodes", 1))
    each = _ranks_per_pod(spec)
    if not 0 <= rank < pods * each:
        raise BadInput(f"invalid --rank {rank}: this job has ranks 0 to {pods * each - 1}")
    # Absent indices leave gaps, and ranks skip them.
    absent = set(cast("list[int]", places.get("absent") or []))
    present = [index for index in range(pods + len(absent)) if index not in absent]
    return str(present[rank // each])


def _ranks_per_pod(spec: Json) -> int:
    """Return the number of processes whose lines a pod tags with their rank."""
    launch = _fields(spec, "template").get("launch")
    # PerPod launchers start their own ranks, so lines have no tag.
    supervised = spec.get("trainer") is not None or launch == "PerGpu"
    return int(spec.get("gpusPerNode", 1)) if supervised else 1


def _period(job: Json, around: str, *, now: float) -> tuple[float, float]:
    """Return the period from a fault to the first step after it, or one moment twice."""
    status = _fields(job, "status")
    newest = status.get("lastIncident")
    # The newest incident is separate in the status, and it comes first.
    earlier = cast("list[Json]", status.get("earlierIncidents") or [])
    incidents = [*([cast("Json", newest)] if newest else []), *earlier]
    for incident in incidents:
        if around in (NEWEST, f"{incident.get('generation')}.{incident.get('attempt')}"):
            begins = moment(str(incident.get("faultAt") or ""))
            if begins is not None:
                return begins, _end(incident, begins=begins, now=now)
    if around != NEWEST and (at := moment(around)) is not None:
        return at, at
    known = ", ".join(_numbers(incidents)) or "none"
    raise BadInput(
        f"invalid --around {around}: want an incident or a time; the incidents of this job: {known}"
    )


def _end(incident: Json, *, begins: float, now: float) -> float:
    stages: list[Any] = [incident.get(stage) for stage in _STAGES]
    if any(stage is None for stage in stages):
        # An unfinished stage means that the incident lasts until now.
        return max(begins, now)
    return begins + sum(stages) / 1000


def _numbers(incidents: list[Json]) -> Iterator[str]:
    for incident in incidents:
        yield f"{incident.get('generation')}.{incident.get('attempt')}"


def _fields(raw: Json, name: str) -> Json:
    return cast("Json", raw.get(name) or {})
