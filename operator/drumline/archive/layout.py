"""Where a document lies in the archive.

::

    live/UID.json                              a job that has not ended, as it last was
    ended/2026-11-23/NAMESPACE/NAME/UID.json   a job that ended on this day (UTC)
    ended/2026-11-23/NAMESPACE/NAME/UID.log    the last lines of its pods, where they are kept

A job ends once, so what lies below `ended` is written once. The day comes first: a reader of the
last month lists thirty folders, and what is too old goes as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Final

LIVE: Final = "live/"
ENDED: Final = "ended/"
_SUFFIX: Final = ".json"
_LOG_SUFFIX: Final = ".log"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedPath:
    """The place of a job that has ended."""

    day: date
    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{ENDED}{self.day.isoformat()}/{self.namespace}/{self.name}/{self.uid}{_SUFFIX}"

    @property
    def logs(self) -> str:
        """Where the last lines of its pods are."""
        return str(self).removesuffix(_SUFFIX) + _LOG_SUFFIX

    @classmethod
    def parse(cls, path: str) -> EndedPath | None:
        """What a path says; None for a file that is not the archive's."""
        day, parts = ended_day(path), path.removesuffix(_SUFFIX).split("/")
        if day is None or not path.endswith(_SUFFIX) or len(parts) != 5:
            return None
        return cls(day=day, namespace=parts[2], name=parts[3], uid=parts[4])


def ended_day(path: str) -> date | None:
    """The day in the path of any file of an ended job; None for other files."""
    if not path.startswith(ENDED):
        return None
    try:
        return date.fromisoformat(path.split("/")[1])
    except ValueError:
        return None


def live_path(uid: str) -> str:
    """The place of a job that has not ended."""
    return f"{LIVE}{uid}{_SUFFIX}"


def live_uid(path: str) -> str | None:
    """Whose place a path is; None for a file that is not the archive's."""
    uid = path.removeprefix(LIVE).removesuffix(_SUFFIX)
    return uid if path == live_path(uid) and "/" not in uid else None


def day_of(moment: float) -> date:
    """The day (UTC) of a moment in seconds since the epoch."""
    return datetime.fromtimestamp(moment, UTC).date()
