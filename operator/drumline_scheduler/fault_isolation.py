"""Keep an exception that one gang causes away from all other gangs.

An exception that is raised while one gang is decided becomes that gang's answer (`SchedulerError`).
The cycle then starts again without the gang, as if it did not exist, because the exception may have
left the views in the middle of a change. A running gang keeps what it has, and no phase of the
cycle changes it; with a surplus gang, both are kept so. Pure: no I/O, no clock.

The phases of a cycle name the gang that they decide (`deciding`). Without a phase, the frames of
the exception name gangs (`gangs_in_frames`), and one attempt without such a gang shows whether it
is at fault. Otherwise bisection over all gangs finds it. The work is bounded: after a few faults of
waiting gangs in one namespace, all waiting gangs of the namespace are set aside together, and after
`MAX_FAULTS` the cycle fails. A gang that takes too long is found with probes, attempts that have a
small limit.

Example: the repair of A raises, and B and C wait. The first attempt is repeated without the cache.
The third one leaves A as it is and starts B and C. The caller sets A aside (`set_aside`) for some
time: the next cycles need one attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.decisions import Blocked, BlockReason, Decisions, GangFault
from drumline_scheduler.faults import (
    GangError,
    Stage,
    fault_about,
    gangs_in_frames,
    message_of,
)
from drumline_scheduler.model import Admitted, Gang, InvalidSnapshotError
from drumline_scheduler.work import CycleCutError, OutOfStepsError

MAX_FAULTS: Final = 48
"""Exceptions that one call of `decide` answers; with more, the cycle fails."""
MAX_LIMITS: Final = 4
"""Gangs that are stopped by a limit in one call, before the cycle fails: each takes seconds."""
MAX_NAMESPACE_FAULTS: Final = 4
"""Exceptions on waiting gangs of one namespace, before all of its waiting gangs are set aside."""

_MAX_SUSPECTS: Final = 4
"""Gangs in the frames of an exception that are tried, before bisection."""


class TooManyFaultsError(RuntimeError):
    """More gangs raise than one call sets aside; `faults` has those that were set aside."""

    def __init__(self, faults: Sequence[GangFault]) -> None:
        super().__init__(f"{len(faults)} gangs raise, the last one: {faults[-1].error}")
        self.faults = tuple(faults)


def without(cycle: CycleInput, uids: Collection[str], *, plain: Collection[str] = ()) -> CycleInput:
    """Return the arguments without some waiting gangs, and with some running gangs inert.

    An inert gang keeps its slots and its quota. It is not repaired, resized, moved or evicted.
    A waiting gang waits without its surplus gang if only the surplus gang is listed.

    Args:
        cycle: all gangs.
        uids: uids of the gangs.
        plain: those among the running ones whose slots others hold for them (`plain_holders`).
    """
    if not uids:
        return cycle
    admitted: list[Admitted] = []
    for held in cycle.snapshot.admitted:
        if plain and _is_set_aside(held, plain):
            admitted += plain_holders(held)
        else:
            admitted.append(_inert(held) if _is_set_aside(held, uids) else held)
    snapshot = replace(cycle.snapshot, admitted=tuple(admitted))
    pending = tuple(_without_surplus(gang, uids) for gang in cycle.pending if gang.uid not in uids)
    return replace(cycle, snapshot=snapshot, pending=pending)


def plain_holders(held: Admitted) -> Iterable[Admitted]:
    """Yield gangs without any feature that hold the slots and the quota of a running one.

    There is one for each role, because the pods of a plain gang are equal. Their uids are new.
    """
    gang, first = held.gang, 0
    parts = [*((role.pods, role.per_pod) for role in gang.roles), (held.size, gang.per_pod)]
    for pods, per_pod in parts:
        places = range(first, first + pods)
        first += pods
        yield Admitted(
            gang=Gang(
                key=gang.key,
                uid=f"{gang.uid}/holds/{places.start}",
                queue=gang.queue,
                user=gang.user,
                priority=gang.priority,
                nodes=pods,
                per_pod=per_pod,
                queued_at=gang.queued_at,
                # Its sweep and its group count once.
                sweep="" if places.start else gang.sweep,
                sweep_limit=gang.sweep_limit,
                group="" if places.start else gang.group,
                group_gangs=gang.group_gangs,
            ),
            pool=held.pool,
            assignment=tuple(held.assignment[place] for place in places),
            reserved=frozenset(place - places.start for place in held.reserved if place in places),
            lost=frozenset(place - places.start for place in held.lost if place in places),
            leaving=held.leaving and not held.nominated,
            departs=held.departs,
            preemptible=False,
            admitted_at=held.admitted_at,
            ends_at=held.ends_at,
            set_aside=True,
            is_residual=held.is_residual,
            is_foreign=held.is_foreign,
        )


def all_gangs(cycle: CycleInput) -> dict[str, Gang]:
    """Return all gangs by uid: the waiting ones, the running ones, and their surplus gangs."""
    gangs = [*cycle.pending, *(held.gang for held in cycle.snapshot.admitted)]
    gangs += [gang.surplus for gang in gangs if gang.surplus is not None]
    return {gang.uid: gang for gang in gangs}


def decide_around_faults(
    attempt: Callable[[CycleInput], Decisions],
    *,
    probe: Callable[[CycleInput], Decisions],
    cycle: CycleInput,
) -> Decisions:
    """Return the decisions about all gangs that can be decided, and the faults of the others.

    Args:
        attempt: decide about some gangs; it starts from nothing that an earlier attempt changed.
        probe: an attempt with a small limit, to find the gang that takes too long.
        cycle: all gangs; those of `cycle.set_aside` are not tried.

    Raises:
        TooManyFaultsError: more than `MAX_FAULTS` gangs raise.
        InvalidSnapshotError: the arguments contradict each other.
        Exception: the cycle raises whatever gangs are set aside.
    """
    known = {fault.uid: fault for fault in cycle.set_aside}
    search = _FaultSearch(attempt=attempt, probe=probe, cycle=cycle, known=known.keys())
    first: Exception | None = None
    while True:
        try:
            # The first attempt includes all gangs. Each further attempt leaves
            # out one more, so the loop ends.
            decisions = attempt(search.left(search.out))
        except InvalidSnapshotError:
            raise
        except Exception as error:
            if first is None and not _is_limit(error):
                first = error  # once more: what earlier cycles left behind may be the cause
                continue
            if not search.set_aside(error):
                for gang in gangs_in_frames(error)[:1]:
                    error.add_note(f"it was raised about job {gang.key}")
                raise
            if search.count > MAX_FAULTS or search.limits >= MAX_LIMITS:
                raise TooManyFaultsError(list(search.faults.values())) from error
        else:
            if first is not None and not search.faults:
                cause = first.__cause__ or first if isinstance(first, GangError) else first
                search.faults[""] = fault_about("", uid="", stage=Stage.CACHE, error=cause)
            return _with_faults(decisions, cycle=cycle, faults={**known, **search.faults})


def _is_limit(error: Exception) -> bool:
    """Return whether a gang took too long: another attempt would take as long."""
    cause = error.__cause__ if isinstance(error, GangError) else error
    return isinstance(cause, CycleCutError | OutOfStepsError)


class _FaultSearch:
    """Finds the gangs that exceptions are about.

    Args:
        attempt: decide about some gangs.
        probe: decide about some gangs within a small limit.
        cycle: all gangs.
        known: uids of the gangs that earlier cycles set aside.
    """

    def __init__(
        self,
        *,
        attempt: Callable[[CycleInput], Decisions],
        probe: Callable[[CycleInput], Decisions],
        cycle: CycleInput,
        known: Collection[str],
    ) -> None:
        self._attempt = attempt
        self._probe = probe
        self._cycle = cycle
        self._known = known
        self._may_share_a_cause = True
        self._plain = {fault.uid for fault in cycle.set_aside if fault.slots_raise}
        """Uids of running gangs that raise although they are inert."""
        self.faults: dict[str, GangFault] = {}
        """Faults by uid, in the order in which they were found."""
        self.count = 0
        """Exceptions so far."""
        self.limits = 0
        """Number of these exceptions that are about a limit of time or steps."""

    @cached_property
    def _gangs(self) -> dict[str, Gang]:
        """All gangs by uid. Most cycles raise nothing and do not need them."""
        return all_gangs(self._cycle)

    @cached_property
    def _waiting(self) -> frozenset[str]:
        return frozenset(gang.uid for gang in self._cycle.pending)

    @property
    def out(self) -> set[str]:
        """Uids of the gangs that the next attempt does without."""
        return {*self._known, *self.faults}

    def left(self, out: Collection[str], *, plain: Collection[str] = ()) -> CycleInput:
        """Return the arguments of an attempt.

        Args:
            out: uids of the gangs that it does without.
            plain: uids of running gangs among them that raise although they are inert, beside those
                that are known.
        """
        return without(self._cycle, out, plain={*self._plain, *plain})

    def set_aside(self, error: Exception) -> bool:
        """Set the gang aside that an exception is about. Return False if no gang explains it.

        Each call that returns True makes `out` larger, or is the only one that replaces two faults
        by the one of a running gang. So the number of attempts is bounded.
        """
        # 1. Find the gang: named by the phase, by the frames, or by bisection.
        fault = self._fault_of(error)
        if fault is None:
            return False
        self.count += 1
        if _is_limit(error):
            self.limits += 1
            self._may_share_a_cause = False  # to find out would take as long again, many times
        # 2. Two equal errors may come from one running gang that both gangs met.
        alike = [each for each in self.faults.values() if each.error == fault.error]
        if len(alike) == 1 and self._may_share_a_cause:
            # Both may have met the same running gang, which is at fault.
            self._may_share_a_cause = False
            running = self._running_culprit(fault, without=alike[0], error=error)
            if running is not None:
                del self.faults[alike[0].uid]
                fault = running
        # 3. Leave the gang out from now on, and its namespace if it has several such gangs.
        self.faults[fault.uid] = fault
        self._set_namespace_aside(fault)
        return True

    def _fault_of(self, error: Exception) -> GangFault | None:
        uid, stage, cause = "", str(Stage.CYCLE), error.__cause__ or error
        if isinstance(error, GangError):
            uid, stage = error.gang.uid, error.stage
        else:
            cause = error
        if _is_limit(error):
            return self._slow_fault(error, stage=stage)
        if not uid or uid in self.out or uid not in self._gangs:
            culprit = self._in_frames(error) or self._bisected()
            if culprit is None:
                return None
            uid = culprit
        elif (other := self._waiting_culprit(cause, uid)) is not None:
            uid = other
        fault = fault_about(self._gangs[uid].key, uid=uid, stage=stage, error=cause)
        return replace(fault, slots_raise=uid in self._plain)

    def _slow_fault(self, error: Exception, *, stage: str) -> GangFault | None:
        """Return the fault of the gang that takes too long.

        The cycle was stopped at some moment, so the gang that it was deciding may be innocent. A
        probe has a small limit. It shows whether a gang takes long alone, and if none of the named
        ones does, bisection finds the first gangs that do together. If no gang is found, the named
        one is only set aside until the next cycle (`is_certain`).
        """
        named = [error.gang] if isinstance(error, GangError) else []
        cause = error.__cause__ if isinstance(error, GangError) and error.__cause__ else error
        named += gangs_in_frames(cause)
        suspects = [
            uid
            for uid in dict.fromkeys(gang.uid for gang in named)
            if uid in self._gangs and uid not in self.out
        ]
        slow = None if self._is_slow(()) else self._slow_gang(suspects[:_MAX_SUSPECTS])
        uid = slow or (suspects[0] if suspects else None)
        if uid is None:
            return None
        fault = fault_about(self._gangs[uid].key, uid=uid, stage=stage, error=cause)
        return replace(fault, is_certain=slow is not None)

    def _slow_gang(self, suspects: Iterable[str]) -> str | None:
        """Return the gang that takes too long. O(log gangs) probes."""
        for uid in suspects:
            if self._is_slow((uid,)):
                return uid
        uids = [uid for uid in self._gangs if uid not in self.out]
        if not self._is_slow(uids):
            return None
        # The first `low` gangs are quick; the first `high` are slow.
        low, high = 0, len(uids)
        while high - low > 1:
            middle = (low + high) // 2
            if self._is_slow(uids[:middle]):
                high = middle
            else:
                low = middle
        uid = uids[high - 1]
        rest = [each for each in uids if each != uid]
        return uid if self._is_slow((uid,)) or not self._is_slow(rest) else None

    def _is_slow(self, uids: Collection[str]) -> bool:
        """Return whether a cycle about these gangs alone exceeds the limit of a probe."""
        try:
            self._probe(self.left(self._gangs.keys() - set(uids)))
        except InvalidSnapshotError:
            raise
        except Exception as error:  # noqa: BLE001 - the attempts report all others
            return _is_limit(error)
        return False

    def _suspects(self, error: Exception) -> list[str]:
        """Return the uids of gangs that an exception names, the most likely one first."""
        if isinstance(error, GangError):
            return [error.gang.uid]
        named = (gang.uid for gang in gangs_in_frames(error))
        return [uid for uid in named if uid in self._gangs and uid not in self.out]

    def _in_frames(self, error: Exception) -> str | None:
        """Return the gang that is at fault according to the frames of an exception.

        A gang is at fault if the cycle without it does not raise, or only about other gangs. The
        slots of a running gang remain, so they may raise again. Then plain gangs hold them.
        """
        suspects = [] if isinstance(error, GangError) else self._suspects(error)
        for uid in suspects[:_MAX_SUSPECTS]:
            if self._explains(uid, suspects, plain=False):
                return uid
        running = {held.gang.uid for held in self._cycle.snapshot.admitted}
        for uid in suspects[:_MAX_SUSPECTS]:
            if uid in running and self._explains(uid, suspects, plain=True):
                self._plain.add(uid)
                return uid
        return None

    def _explains(self, uid: str, suspects: Collection[str], *, plain: bool) -> bool:
        other = self._error({*self.out, uid}, plain={uid} if plain else ())
        return other is None or not set(suspects) & set(self._suspects(other))

    def _waiting_culprit(self, cause: BaseException, uid: str) -> str | None:
        """Return another waiting gang that is at fault: it was met while one was decided.

        Examples are a member of its group, or a gang with a nomination.

        Args:
            cause: the exception.
            uid: uid of the gang that was decided.
        """
        inner = next((gang.uid for gang in gangs_in_frames(cause)), uid)
        if inner == uid or inner in self.out or inner not in self._waiting:
            return None
        return inner if self._explains(inner, [inner, uid], plain=False) else None

    def _bisected(self) -> str | None:
        return self._culprit(out=self.out, among=list(self._gangs))

    def _running_culprit(
        self, fault: GangFault, *, without: GangFault, error: Exception
    ) -> GangFault | None:
        """Return the fault of the running gang that alone explains two faults, if there is one.

        Args:
            fault: the second fault.
            without: the first one.
            error: the exception of the second one.
        """
        out = self.out - {without.uid}
        running = [held.gang.uid for held in self._cycle.snapshot.admitted]
        # 1. A gang in the frames. Its slots may be what raises, so plain gangs hold them.
        for uid in self._running_suspects(error, running):
            if self._error({*out, uid}) is None:
                return replace(fault, key=self._gangs[uid].key, uid=uid)
            if self._error({*out, uid}, plain={uid}) is None:
                self._plain.add(uid)
                return replace(fault, key=self._gangs[uid].key, uid=uid, slots_raise=True)
        # 2. Any other one.
        uid = self._culprit(out=out, among=running)
        if uid is None or uid in (fault.uid, without.uid) or self._raises({*out, uid}):
            return None
        return replace(fault, key=self._gangs[uid].key, uid=uid)

    def _running_suspects(self, error: Exception, running: Collection[str]) -> list[str]:
        """Return the uids of running gangs that the frames of an exception name."""
        cause = error.__cause__ if isinstance(error, GangError) else None
        named = (gang.uid for gang in gangs_in_frames(cause or error))
        return [uid for uid in named if uid in running and uid not in self.out][:_MAX_SUSPECTS]

    def _set_namespace_aside(self, fault: GangFault) -> None:
        """Set all waiting gangs of a namespace aside once some of them have raised."""
        waiting = {gang.uid: gang for gang in self._cycle.pending}
        if fault.uid not in waiting:
            return
        namespace = waiting[fault.uid].namespace
        members = [gang for gang in waiting.values() if gang.namespace == namespace]
        if sum(gang.uid in self.faults for gang in members) < MAX_NAMESPACE_FAULTS:
            return
        for gang in members:
            if gang.uid not in self.out:
                self.faults[gang.uid] = replace(fault, key=gang.key, uid=gang.uid)

    def _culprit(self, *, out: Collection[str], among: Iterable[str]) -> str | None:
        """Return the uid of a gang without which the cycle does not raise.

        Needs O(log gangs) attempts.

        Args:
            out: uids of gangs that are set aside anyway.
            among: uids of the gangs that are examined; all others take part.
        """
        uids = [uid for uid in among if uid not in out]
        if not uids or self._raises({*out, *uids}):
            return None
        # With the first `low` gangs the cycle does not raise; with the first `high` it does.
        low, high = 0, len(uids)
        while high - low > 1:
            middle = (low + high) // 2
            if self._raises({*out, *uids[middle:]}):
                high = middle
            else:
                low = middle
        return uids[high - 1]

    def _raises(self, out: Collection[str]) -> bool:
        return self._error(out) is not None

    def _error(self, out: Collection[str], *, plain: Collection[str] = ()) -> Exception | None:
        """Return the exception of a cycle without some gangs; None if it does not raise."""
        try:
            self._attempt(self.left(out, plain=plain))
        except InvalidSnapshotError:
            raise
        except Exception as error:  # noqa: BLE001 - any exception is the one that is looked for
            return error
        return None


def _is_set_aside(held: Admitted, uids: Collection[str]) -> bool:
    """Return whether a running gang is set aside, for itself or with its surplus gang."""
    gang = held.gang
    beside = gang.surplus_of or (gang.surplus.uid if gang.surplus is not None else "")
    return gang.uid in uids or (bool(beside) and beside in uids)


def _inert(held: Admitted) -> Admitted:
    """Return a running gang that only keeps its slots; one that was about to move stays."""
    moves = held.leaving and bool(held.nominated)
    return replace(
        held,
        set_aside=True,
        preemptible=False,
        leaving=held.leaving and not moves,
        displaced=frozenset(),
        nominated={},
        nominated_pool="",
    )


def _without_surplus(gang: Gang, uids: Collection[str]) -> Gang:
    if gang.surplus is None or gang.surplus.uid not in uids:
        return gang
    return replace(gang, surplus=None)


def _fault_of_gang(gang: Gang, faults: Mapping[str, GangFault]) -> GangFault:
    """Return the fault of a gang or of its surplus gang."""
    fault = faults.get(gang.uid)
    return (
        faults[gang.surplus.uid] if fault is None and gang.surplus is not None else faults[gang.uid]
    )


def _with_faults(
    decisions: Decisions, *, cycle: CycleInput, faults: dict[str, GangFault]
) -> Decisions:
    """Add the answers of the gangs that were set aside: all that wait, and all that are broken."""
    if not faults:
        return decisions
    # Gangs that were set aside and wait or are broken get an answer. Running ones keep their slots.
    waiting = [gang for gang in cycle.pending if gang.uid in faults]
    broken = [
        held.gang
        for held in cycle.snapshot.admitted
        if _is_set_aside(held, faults) and held.lost and not (held.leaving or held.gang.surplus_of)
    ]
    answers = tuple(
        Blocked(
            key=gang.key,
            uid=gang.uid,
            reason=BlockReason.SCHEDULER_ERROR,
            message=message_of(_fault_of_gang(gang, faults)),
            needed=gang.gpus,
        )
        for gang in (*broken, *waiting)
    )
    # A gang that was about to move is inert now, so its move is cancelled.
    stay = [
        held.gang.uid
        for held in cycle.snapshot.admitted
        if _is_set_aside(held, faults) and held.leaving and held.nominated and not held.departs
    ]
    return replace(
        decisions,
        stay=(*decisions.stay, *stay),
        blocked=(*(each for each in decisions.blocked if each.uid not in faults), *answers),
        order=(*decisions.order, *(gang.uid for gang in waiting)),
        faults=tuple(faults[uid] for uid in sorted(faults)),
    )
