"""Define the paths of documents in the archive.

::

    live/UID.json                              a job that has not ended, as it last was
    ended/2026-11-23/NAMESPACE/NAME/UID.json   a job that ended on this day (UTC)
    ended/2026-11-23/NAMESPACE/NAME/UID.log    the last lines of its pods, where they are kept
    logs/NAMESPACE/UID/2026-11-23.3.SECONDS.log  the same of generation 3, when that had an incident

A job ends once, so what lies below `ended` is written once. The day comes first: a reader of the
last month lists thirty folders, and what is too old goes as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Final

LIVE: Final = "live/"
ENDED: Final = "ended/"
LOGS: Final = "logs/"
NOT_READ: Final = b"(not read: "
"""Prefix of the line that replaces the lines of a pod that were not read."""
_SUFFIX: Final = ".json"
_LOG_SUFFIX: Final = ".log"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedPath:
    """Path of an ended job."""

    day: date
    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{ENDED}{self.day.isoformat()}/{self.namespace}/{self.name}/{self.uid}{_SUFFIX}"

    @property
    def logs(self) -> str:
        """Return the path of the last lines of its pods."""
        return str(self).removesuffix(_SUFFIX) + _LOG_SUFFIX

    @classmethod
    def parse(cls, path: str) -> EndedPath | None:
        """Parse a path. Return None for a file that does not belong to the archive."""
        day, parts = ended_day(path), path.removesuffix(_SUFFIX).split("/")
        if day is None or not path.endswith(_SUFFIX) or len(parts) != 5:
            return None
        return cls(day=day, namespace=parts[2], name=parts[3], uid=parts[4])


def ended_day(path: str) -> date | None:
    """Return the day in the path of an ended job's file, or None for other files."""
    if not path.startswith(ENDED):
        return None
    try:
        return date.fromisoformat(path.split("/")[1])
    except ValueError:
        return None


def live_path(uid: str) -> str:
    """Return the path of a job that has not ended."""
    return f"{LIVE}{uid}{_SUFFIX}"


def live_uid(path: str) -> str | None:
    """Return the UID of a live path, or None for other files."""
    uid = path.removeprefix(LIVE).removesuffix(_SUFFIX)
    return uid if path == live_path(uid) and "/" not in uid else None


def day_of(moment: float) -> date:
    """Return the day (UTC) of a time in seconds since the epoch."""
    return datetime.fromtimestamp(moment, UTC).date()


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierLogs:
    """Path of the last lines of a job's pods at a time before its end."""

    namespace: str
    uid: str
    generation: int
    """Generation of the gang."""
    at: int
    """Time, in seconds since the epoch."""

    def __str__(self) -> str:
        day = day_of(self.at).isoformat()
        return f"{logs_of(self.namespace, self.uid)}{day}.{self.generation}.{self.at}{_LOG_SUFFIX}"

    @classmethod
    def parse(cls, path: str) -> EarlierLogs | None:
        """Parse a path. Return None for a file that does not belong to the archive."""
        parts = path.removeprefix(LOGS).split("/")
        if not path.startswith(LOGS) or len(parts) != 3:
            return None
        _, *numbers = parts[2].removesuffix(_LOG_SUFFIX).split(".")
        if len(numbers) != 2 or not all(each.isdecimal() and len(each) <= 10 for each in numbers):
            return None
        generation, at = map(int, numbers)
        known = cls(namespace=parts[0], uid=parts[1], generation=generation, at=at)
        return known if str(known) == path else None


def logs_of(namespace: str, uid: str) -> str:
    """Return the prefix of a job's earlier lines."""
    return f"{LOGS}{namespace}/{uid}/"


def earlier_logs(paths: Iterable[str]) -> list[EarlierLogs]:
    """Return the earlier lines among these paths, oldest first."""
    known = (EarlierLogs.parse(path) for path in paths)
    return sorted((each for each in known if each is not None), key=lambda each: each.at)
