"""Keep an exception on one gang away from the forecasts of all others.

The stages of `decide` isolate exceptions in the cycles of a forecast. This is for all other steps:
the ends of running gangs, the lines, the rough estimates. The frames of the exception name the
gang. A waiting gang is left out. A running gang keeps its slots and its quota as far as the
forecast looks ahead, because its end is not known. Then the forecast is made again. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from drumline_scheduler.decisions import GangFault
from drumline_scheduler.fault_isolation import TooManyFaultsError
from drumline_scheduler.faults import GangError, Stage, fault_about, uids_in_frames
from drumline_scheduler.model import Gang, InvalidSnapshotError, Snapshot
from drumline_scheduler.overdue_gangs import staying
from drumline_scheduler.work import CycleCutError

MOST_FAULTS: Final = 4
"""Gangs that one forecast leaves out or counts as staying because it raises on them."""

OnFault = Callable[[GangFault], None]
"""Takes an exception on one gang."""
_Answer = TypeVar("_Answer")


def ignored(_: GangFault) -> None:
    """Ignore an exception on one gang."""


def forecast_around_faults(
    attempt: Callable[[Snapshot, tuple[Gang, ...]], _Answer],
    *,
    snapshot: Snapshot,
    pending: tuple[Gang, ...],
    on_fault: OnFault,
) -> _Answer:
    """Return a forecast that no exception on one gang ends.

    Args:
        attempt: forecasts from a snapshot and waiting gangs.
        snapshot: the cluster.
        pending: the waiting gangs.
        on_fault: takes each exception on one gang.

    Raises:
        Exception: it raises on more gangs than `MOST_FAULTS`, or on none of them.
    """
    faults = 0
    while True:
        try:
            return attempt(snapshot, pending)
        except (InvalidSnapshotError, TooManyFaultsError, CycleCutError):
            raise
        except Exception as error:
            # 1. The gang: one that was not answered before, so the loop ends.
            known = _gangs(snapshot, pending)
            named = uids_in_frames(error, known)
            faults += 1
            if not named or faults > MOST_FAULTS:
                raise
            gang = known[named[0]]
            cause = error.__cause__ if isinstance(error, GangError) else None
            on_fault(
                fault_about(gang.key, uid=gang.uid, stage=Stage.FORECAST, error=cause or error)
            )
            # 2. The same forecast without it.
            pending = tuple(each for each in pending if each.uid != gang.uid)
            snapshot = replace(
                snapshot,
                admitted=tuple(
                    staying(held) if held.gang.uid == gang.uid else held
                    for held in snapshot.admitted
                ),
            )


def _gangs(snapshot: Snapshot, pending: tuple[Gang, ...]) -> dict[str, Gang]:
    """Return the gangs that may be at fault, by uid."""
    running = (held.gang for held in snapshot.admitted if not held.is_overdue)
    return {gang.uid: gang for gang in (*running, *pending)}
