"""Keep an exception that one gang causes away from all other gangs.

An exception that is raised while one gang is decided becomes that gang's answer (`SchedulerError`).
The cycle then starts again without the gang, as if it did not exist, because the exception may have
left the views in the middle of a change. A running gang keeps what it has, and no phase of the
cycle changes it. Pure: no I/O, no clock.

The phases of a cycle name the gang that they decide (`deciding`). An exception without such a gang
is traced to one by bisection over all gangs.

Example: the repair of A raises, and B and C wait. The second attempt leaves A as it is and starts B
and C. The caller sets A aside (`set_aside`) for some time: the next cycles need one attempt.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import PurePath
from types import TracebackType
from typing import Final

from drumline.scheduling.decisions import Blocked, BlockReason, Decisions, GangFault
from drumline.scheduling.model import Admitted, Gang, InvalidSnapshotError, Snapshot
from drumline.scheduling.rejections import bounded

MAX_FAULTS: Final = 16
"""Gangs that one call of `decide` sets aside; with more, the cycle fails."""
_MAX_ERROR_CHARS: Final = 200
_MAX_FRAMES: Final = 16


class Stage(StrEnum):
    """The part of a cycle in which a gang is decided; the value of a metric's label."""

    REPAIR = "repair"
    START = "start"
    """In nominated slots."""
    RELOCATE = "relocate"
    ADMIT = "admit"
    GROW = "grow"
    SURPLUS = "surplus"
    MOVE = "move"
    PREEMPT = "preempt"
    """As a candidate for preemption."""
    EXPLAIN = "explain"
    CYCLE = "cycle"
    """Outside of the other stages."""


class GangError(Exception):
    """An exception, the cause of this one, that was raised while one gang was decided."""

    def __init__(self, *, gang: Gang, stage: Stage) -> None:
        super().__init__(f"{stage} {gang.key}")
        self.gang = gang
        self.stage = stage


class TooManyFaultsError(RuntimeError):
    """More gangs raise than one call sets aside; `faults` has those that were set aside."""

    def __init__(self, faults: Sequence[GangFault]) -> None:
        super().__init__(f"{len(faults)} gangs raise, the last one: {faults[-1].error}")
        self.faults = tuple(faults)


class deciding:  # noqa: N801 - a context manager that reads as a phrase: `with deciding(gang, ...)`
    """Name the gang that the body decides. Costs nothing but a call where nothing is raised."""

    __slots__ = ("_gang", "_stage")

    def __init__(self, gang: Gang, stage: Stage) -> None:
        self._gang = gang
        self._stage = stage

    def __enter__(self) -> None:
        """Enter the body."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Name the gang in an exception of the body, unless an inner body has done so.

        Raises:
            GangError: the body raised.
        """
        if isinstance(error, Exception) and not isinstance(error, GangError | InvalidSnapshotError):
            raise GangError(gang=self._gang, stage=self._stage) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleGangs:
    """The arguments of a cycle that are about gangs."""

    snapshot: Snapshot
    pending: tuple[Gang, ...]

    def without(self, uids: Collection[str]) -> CycleGangs:
        """Return the arguments without some waiting gangs, and with some running gangs inert.

        An inert gang keeps its slots and its quota. It is not repaired, resized, moved or evicted.
        """
        if not uids:
            return self
        return CycleGangs(
            snapshot=replace(
                self.snapshot,
                admitted=tuple(_set_aside(held, uids) for held in self.snapshot.admitted),
            ),
            pending=tuple(
                _without_surplus(gang, uids) for gang in self.pending if gang.uid not in uids
            ),
        )

    @property
    def uids(self) -> list[str]:
        """Uids of all gangs: the waiting ones, then the running ones and the surplus gangs."""
        gangs = [*self.pending, *(held.gang for held in self.snapshot.admitted)]
        surplus = [gang.surplus.uid for gang in gangs if gang.surplus is not None]
        return list(dict.fromkeys([*(gang.uid for gang in gangs), *surplus]))

    def key_of(self, uid: str) -> str:
        """Return the key of a gang by its uid."""
        gangs = [*self.pending, *(held.gang for held in self.snapshot.admitted)]
        gangs += [gang.surplus for gang in gangs if gang.surplus is not None]
        return next(gang.key for gang in gangs if gang.uid == uid)


def decide_around_faults(
    attempt: Callable[[CycleGangs], Decisions], *, gangs: CycleGangs, set_aside: Iterable[GangFault]
) -> Decisions:
    """Return the decisions about all gangs that can be decided, and the faults of the others.

    Args:
        attempt: decide about some gangs; it starts from nothing that an earlier attempt changed.
        gangs: all gangs.
        set_aside: faults of earlier cycles; these gangs are not tried.

    Raises:
        TooManyFaultsError: more than `MAX_FAULTS` gangs raise.
        InvalidSnapshotError: the arguments contradict each other.
        Exception: the cycle raises whatever gangs are set aside.
    """
    search = _FaultSearch(attempt=attempt, gangs=gangs, known={each.uid for each in set_aside})
    faults: dict[str, GangFault] = {}
    first: Exception | None = None
    while True:
        out = {*search.known, *faults}
        try:
            decisions = attempt(gangs.without(out))
        except InvalidSnapshotError:
            raise
        except Exception as error:
            if first is None:
                first = error  # once more: what earlier cycles left behind may be the cause
                continue
            fault = search.fault_of(error, out=out)
            if fault is None:
                raise
            # Two gangs that raise alike may both meet the same running gang, which is at fault.
            alike = [each for each in faults.values() if each.error == fault.error]
            shared = search.running_culprit(fault) if len(alike) == 1 else None
            if shared is not None:
                del faults[alike[0].uid]
                fault = shared
            faults[fault.uid] = fault
            if len(faults) > MAX_FAULTS:
                raise TooManyFaultsError(list(faults.values())) from error
        else:
            if first is not None and not faults:
                faults[""] = fault_about("", uid="", stage=Stage.CYCLE, error=first)
            known = {fault.uid: fault for fault in set_aside}
            return _with_faults(decisions, gangs=gangs, faults={**known, **faults})


def message_of(fault: GangFault) -> str:
    """Return the message of a job's condition about its fault."""
    return bounded(
        f"the scheduler failed on this job (stage {fault.stage}: {fault.error}). Other jobs are not"
        f" affected. The scheduler tries the job again. Capture {fault.seed} shows the cycle;"
        " please report it"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _FaultSearch:
    """Finds the gang that an exception is about."""

    attempt: Callable[[CycleGangs], Decisions]
    gangs: CycleGangs
    known: Collection[str]
    """Uids of the gangs that earlier cycles set aside."""

    def fault_of(self, error: Exception, *, out: Collection[str]) -> GangFault | None:
        """Return the fault of the gang that an exception is about; None if no gang explains it.

        Args:
            error: raised by an attempt.
            out: uids of the gangs that were set aside in that attempt.
        """
        uid: str | None = None
        stage, cause = Stage.CYCLE, error
        if isinstance(error, GangError):
            uid, stage, cause = error.gang.uid, error.stage, error.__cause__ or error
        if uid is None or uid in out:
            uid = self._culprit(out=out, among=self.gangs.uids)
        return None if uid is None else self._fault(uid, stage=stage, error=cause)

    def running_culprit(self, fault: GangFault) -> GangFault | None:
        """Return the fault of a running gang without which no gang raises; None if there is none.

        Args:
            fault: of a gang that raises as another gang did.
        """
        running = [held.gang.uid for held in self.gangs.snapshot.admitted]
        uid = self._culprit(out=self.known, among=running)
        if uid is None:
            return None
        return replace(fault, key=self.gangs.key_of(uid), uid=uid)

    def _fault(self, uid: str, *, stage: str, error: BaseException) -> GangFault:
        return fault_about(self.gangs.key_of(uid), uid=uid, stage=stage, error=error)

    def _culprit(self, *, out: Collection[str], among: Iterable[str]) -> str | None:
        """Return the uid of a gang without which the cycle does not raise.

        Needs O(log gangs) attempts.

        Args:
            out: uids of gangs that are set aside anyway.
            among: uids of the gangs that are looked at; all others take part.
        """
        uids = [uid for uid in among if uid not in out]
        if self._raises({*out, *uids}):
            return None
        # With the first `low` gangs the cycle does not raise; with the first `high` it does.
        low, high = 0, len(uids)
        while high - low > 1:
            middle = (low + high) // 2
            if self._raises({*out, *uids[middle:]}):
                high = middle
            else:
                low = middle
        return uids[high - 1] if uids else None

    def _raises(self, out: Collection[str]) -> bool:
        try:
            self.attempt(self.gangs.without(out))
        except InvalidSnapshotError:
            raise
        except Exception:  # noqa: BLE001 - any exception is the one that is looked for
            return True
        return False


def fault_about(key: str, *, uid: str, stage: str, error: BaseException) -> GangFault:
    """Return the fault that an exception is, without any path of this machine.

    Args:
        key: `namespace/name` of the gang.
        uid: of the gang.
        stage: part of the cycle that raised.
        error: the exception.
    """
    frames = [
        (f"{PurePath(frame.filename).name}:{frame.lineno}", frame.name)
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    text = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    where = f" ({frames[-1][0]})" if frames else ""
    return GangFault(
        key=key,
        uid=uid,
        stage=stage,
        error=f"{text[:_MAX_ERROR_CHARS]}{where}",
        trace=" < ".join(f"{place} {name}" for place, name in reversed(frames[-_MAX_FRAMES:])),
    )


def _set_aside(held: Admitted, uids: Collection[str]) -> Admitted:
    gang = _without_surplus(held.gang, uids)
    if gang.uid not in uids:
        return held if gang is held.gang else replace(held, gang=gang)
    return replace(
        held,
        gang=gang if gang.surplus is None else replace(gang, surplus=None),
        set_aside=True,
        preemptible=False,
        displaced=frozenset(),
        nominated={},
        nominated_pool="",
    )


def _without_surplus(gang: Gang, uids: Collection[str]) -> Gang:
    if gang.surplus is None or gang.surplus.uid not in uids:
        return gang
    return replace(gang, surplus=None)


def _with_faults(
    decisions: Decisions, *, gangs: CycleGangs, faults: dict[str, GangFault]
) -> Decisions:
    """Add the answers of the gangs that were set aside: all that wait, and all that are broken."""
    if not faults:
        return decisions
    waiting = [gang for gang in gangs.pending if gang.uid in faults]
    broken = [
        held.gang
        for held in gangs.snapshot.admitted
        if held.gang.uid in faults and held.lost and not (held.leaving or held.gang.surplus_of)
    ]
    answers = tuple(
        Blocked(
            key=gang.key,
            uid=gang.uid,
            reason=BlockReason.SCHEDULER_ERROR,
            message=message_of(faults[gang.uid]),
            needed=gang.gpus,
        )
        for gang in (*broken, *waiting)
    )
    return replace(
        decisions,
        blocked=(*(each for each in decisions.blocked if each.uid not in faults), *answers),
        order=(*decisions.order, *(gang.uid for gang in waiting)),
        faults=tuple(faults[uid] for uid in sorted(faults)),
    )
