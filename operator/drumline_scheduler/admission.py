"""Admit pending gangs: decide whether a gang may start, and on which nodes, or why not.

A gang is tried in this order (`Admission.admit`):

1. Its queue admits it and has budget, its sweep is below its limit, it may use some pool, and it
   is not backing off.
2. An elastic gang gets the largest size that fits anywhere, any other gang its only size.
3. In each pool, in the order of trying: the quota can ever suffice; no gang is ahead of it (strict
   rule); the quota suffices now; slots are free; no reservation is delayed (backfill rule).
   If another gang is entitled to what it would borrow, that gang is asked first (`turns`).
4. If all pools reject it, preemption is tried; for a group, for all its gangs or for none.
5. If that fails too, the rejection is cached for equivalent gangs, and under the backfill rule the
   gang gets a reservation.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Final

from drumline_scheduler.cycle_session import CycleSession
from drumline_scheduler.decisions import Blocked, BlockReason, Placed, Preemption
from drumline_scheduler.faults import Stage, deciding
from drumline_scheduler.late_gangs import LateGangs
from drumline_scheduler.model import Gang, Queue, WaitingRule
from drumline_scheduler.placement.placer import placed
from drumline_scheduler.placement.projection import Nomination
from drumline_scheduler.placement.quota_remedies import QuotaRemedyChecker
from drumline_scheduler.preemption.preemptor import HELPED_BY_PREEMPTION, rules_of
from drumline_scheduler.queueing.expected_ends import GangPlacement
from drumline_scheduler.queueing.explanations import Explanations
from drumline_scheduler.queueing.groups import GangGroup
from drumline_scheduler.queueing.kept_rejections import KeptRejections
from drumline_scheduler.queueing.pending_gangs import is_individual
from drumline_scheduler.queueing.reservation_plan import ReservationRequest
from drumline_scheduler.queueing.reservations import RESERVED_FOR
from drumline_scheduler.quota.entitlement import Entitlements
from drumline_scheduler.quota.queue_access import QueueAccess
from drumline_scheduler.rejections import Rejection, noting_exempt, noting_free_only
from drumline_scheduler.sizes import fitting, sampled
from drumline_scheduler.try_limits import TryLimits
from drumline_scheduler.turns import Turns
from drumline_scheduler.work import lateness

MOST_REJECTED_KINDS: Final = 4
"""Kinds of gangs of one group that are rejected with a reason in one cycle."""
_UNEXPLAINED: Final = Rejection(reason=BlockReason.WAITING_FOR_GROUP, message="")
MOST_PREEMPTING: Final = 8
"""Gangs of a group for which others are evicted. Each of them costs searches for victims."""
MOST_PREEMPTING_ORDERS: Final = 6
"""Orders in which victims for a group are tried."""


MOST_SPARED: Final = 8
"""Victims for a group of which each is tested for whether the others suffice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupVictims:
    """The victims for a group that is nominated in an order."""

    order: Sequence[Gang]
    victims: Mapping[str, float]
    """GPU-seconds that each of them loses, by uid."""

    @property
    def cost(self) -> float:
        """GPU-seconds that all of them lose."""
        return sum(self.victims.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedByPools:
    """A gang for which no pool has slots and quota now. Preemption may help."""

    rejections: Mapping[str, Rejection]
    """Rejections by pool, in the order of trying. There is at least one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Yields:
    """A gang that could start, but would borrow what another gang is entitled to.

    The other gang is asked first.
    """

    to: Gang
    rooms: tuple[GangPlacement, ...]
    """Slots in which the gang could start now, one for each pool that has some."""


class Admission:
    """Admits pending gangs, one after the other."""

    def __init__(self, session: CycleSession) -> None:
        self._session = session
        self._rejections = session.rejections
        self._reservations = session.reservations
        self._access = QueueAccess(session.queues)
        self._remedies = QuotaRemedyChecker(
            current=session.projection.current, placer=session.placer, explain=session.explain
        )
        self._kept = KeptRejections(
            store=session.kept,
            projection=session.projection,
            placer=session.placer,
            remedies=self._remedies,
            is_used=KeptRejections.are_used(session.policy),
        )
        self._released = False
        self._yielding: dict[str, tuple[Hashable, Yields]] = {}
        """Gangs that yielded, each with the state in which it did, by uid."""
        self.limits = TryLimits(session, pools_of=self._pools_of)
        self.late_gangs = LateGangs(session, pools_of=self._pools_of)
        self.explanations = Explanations(
            pending=session.pending,
            budget=session.try_budget,
            before=session.rejections.deferral.before,
        )
        self.turns = Turns(
            session,
            passed=self._is_known,
            closed=self._is_class_known,
            admits=lambda gang: self._not_admitted(gang) is None,
        )

    def is_nominated(self, gang: Gang) -> bool:
        """Return whether slots are nominated for a gang."""
        return self._session.projection.nomination(gang) is not None

    def waiting(self, gang: Gang) -> Blocked:
        """Return the answer for a nominated gang whose victims have not left yet.

        Raises:
            ValueError: no slots are nominated for the gang.
        """
        nomination = self._session.projection.nomination(gang)
        if nomination is None:
            raise ValueError(f"no slots are nominated for {gang.key}")
        return self._session.preemptor.waiting(nomination)

    def start_nominated(self, gang: Gang) -> Placed | Blocked:
        """Start a nominated gang in its nominated slots or, if these are not free, in any others.

        A larger size of an elastic gang comes first, if it fits anywhere and would not borrow what
        a waiting gang is entitled to. That gang would otherwise reclaim the GPUs at once and start
        large itself.

        Raises:
            ValueError: no slots are nominated for the gang.
        """
        session, projection = self._session, self._session.projection
        nomination, queue = projection.nomination(gang), session.queues[gang.queue]
        if nomination is None:
            raise ValueError(f"no slots are nominated for {gang.key}")
        self.turns.ask_early(gang)
        if gang.retry_at > session.now:
            return session.unmet_demand.back_off(gang=gang, pools=()).of(gang)
        # Release first: the gang's own nomination must not count against it below.
        projection.release(nomination)
        pool, nodes, sizes = nomination.pool, nomination.nodes, gang.legal_sizes
        # 1. A larger size than the nominated one, anywhere.
        larger = [size for size in sizes if size > nomination.size]
        entitled = self._entitlements() if larger else None
        room = self._room_anywhere(gang=gang, queue=queue, sizes=larger, entitled=entitled)
        # 2. The nominated slots.
        has_quota = projection.has_quota(gang=gang, pool=pool, size=nomination.size)
        if (
            room is None
            and has_quota
            and projection.current.fits(gang=gang, pool=pool, nodes=nodes)
        ):
            return self._start(GangPlacement(gang=gang, pool=pool, nodes=tuple(nodes)))
        # 3. The nominated size or a smaller one, anywhere. Otherwise the gang keeps its nomination.
        asked = [size for size in sizes if size <= nomination.size]
        room = room or self._room_anywhere(gang=gang, queue=queue, sizes=asked)
        if room is None:
            projection.nominate(nomination)
            return session.preemptor.waiting(nomination)
        started = self._start(room)
        # The nominated slots are free for others now, so earlier rejections may no longer hold.
        session.placer.forget()
        self._released = True
        return started

    def take_released(self) -> bool:
        """Return whether nominated slots became free for other gangs since the last call."""
        repair = self._session.repair
        released = self._released or repair.released_nomination
        self._released = repair.released_nomination = False
        return released

    def admit(self, gang: Gang) -> Placed | Preemption | Rejection | Yields:
        """Start a pending gang, preempt for it, reject it, or name the gang to ask before it."""
        session = self._session
        is_ready = gang.retry_at <= session.now
        # The rejection of an equivalent gang is this gang's answer, if it is not backing off.
        rejection = self._rejections.rejection(gang) if is_ready else None
        is_asked = rejection is None and is_ready
        # A gang behind others costs no search, so it is not put off.
        is_behind = is_asked and self._is_strictly_behind(gang)
        late = self._late(gang) if is_asked and not is_behind else None
        if is_asked and late is None:
            rejection = self._repeated(gang)
        if rejection is None:
            session.candidates.take_exempt()  # those of an earlier gang are not part of this answer
            if late is None and is_ready:
                late = self.explanations.late([gang]) if is_behind else None
                late = late or self.limits.late(gang)
            outcome = late or self._yields_again(gang)
            outcome = outcome or self._try(gang, explains=not session.only_starts)
            if isinstance(outcome, GangPlacement):
                session.note_start()
                self.late_gangs.note_start()
                return self._start(outcome)
            if isinstance(outcome, Yields):
                self._yielding[gang.uid] = (self._state, outcome)
                self.limits.let_pass(gang)
                self.turns.ask_early(outcome.to)
                return outcome
            if isinstance(outcome, RejectedByPools) and session.only_starts:
                return _UNEXPLAINED
            if isinstance(outcome, RejectedByPools):
                helps = session.preemptor.may_help(
                    gang=gang,
                    queue=session.queues[gang.queue],
                    rejections=outcome.rejections,
                )
                # A gang for which no victims are searched is answered, whatever the time.
                late = self._late(gang, stage=Stage.PREEMPT) if helps else None
                preemption = None if late else self._preempt(gang=gang, rejected=outcome)
                if preemption is not None:
                    self.late_gangs.note_start()
                    return preemption
                outcome = late or outcome
            # Add to the message why no gang is evicted for it, and which candidates are exempt.
            rejection = self._merged(gang=gang, outcome=outcome)
            if isinstance(outcome, RejectedByPools) and rejection.reason in HELPED_BY_PREEMPTION:
                rejection = noting_free_only(rejection, why=self._no_eviction_reason(gang))
            rejection = noting_exempt(
                rejection,
                exempt=[held.gang.key for held in session.candidates.take_exempt()],
            )
            if is_ready:
                self._rejections.record(gang=gang, rejection=rejection)
                if isinstance(outcome, RejectedByPools) and not is_individual(gang):
                    self._kept.keep(
                        gang,
                        queue=session.queues[gang.queue],
                        number=session.pending.class_of(gang),
                        by_pool=outcome.rejections,
                        answer=rejection,
                    )
        self._reserve([gang], reason=rejection.reason)
        return rejection

    def _repeated(self, gang: Gang) -> Rejection | None:
        """Return the rejection of an earlier cycle if it still holds, with its effects."""
        session = self._session
        if is_individual(gang) or session.budgets.rejection(gang) is not None:
            return None
        kept = self._kept.recall(gang, number=session.pending.class_of(gang))
        if kept is None:
            return None
        session.unmet_demand.reject(gang=gang, rejections=kept.by_pool)
        self._rejections.record(gang=gang, rejection=kept.answer)
        return kept.answer

    def _pools_of(self, gang: Gang) -> Sequence[str]:
        """Return the pools in which slots are searched for; none if its queue rejects the gang."""
        session = self._session
        if self._not_admitted(gang) is not None:
            return ()
        pools = session.pools.select(gang=gang, queue=session.queues[gang.queue])
        return () if isinstance(pools, Rejection) else pools

    def admit_together(self, group: GangGroup) -> dict[str, Placed | Rejection | Preemption]:
        """Start all gangs of a group or none of them, and return the answers by uid."""
        session, members = self._session, group.members
        if not group.is_complete:
            return {gang.uid: group.incomplete() for gang in members}
        if group.has_too_many_kinds:
            return {gang.uid: group.refused() for gang in members}
        is_ready = all(gang.retry_at <= session.now for gang in members)
        rejected = self._rejections.for_group(members) if is_ready else None
        if rejected is None and is_ready and (late := self._late_behind(members)):
            return {gang.uid: late for gang in members}
        rejected = rejected or self._without_pools(members)
        if rejected is None and is_ready:
            late = self._late_group(group) or self.limits.late_group(group)
            if late:
                return {gang.uid: late for gang in members}
        if rejected is None:
            outcome = self._try_together(group)
            if not isinstance(outcome, Mapping):
                session.note_start()
                return {start.uid: start for start in outcome}
            late = self._late_group(group, stage=Stage.PREEMPT) if is_ready else None
            if late:
                return {gang.uid: late for gang in members}
            if is_ready and (preemptions := self._preempt_together(group, rejected=outcome)):
                return {each.uid: each for each in preemptions}
            rejected = {
                i: group.without_own(self._merged(gang=members[i], outcome=rejection))
                for i, rejection in outcome.items()
            }
            if is_ready:
                self._rejections.record_group(members=members, rejected=rejected)
        # A reservation helps only if all rejected members wait for others to leave.
        if {rejection.reason for rejection in rejected.values()} <= RESERVED_FOR:
            self._reserve(members, reason=BlockReason.WAITING_FOR_GROUP)
        held_up = group.held_up({members[i].key: why for i, why in rejected.items()})
        return {gang.uid: rejected.get(i, held_up) for i, gang in enumerate(members)}

    def _late(self, gang: Gang, *, stage: Stage = Stage.ADMIT) -> Rejection | None:
        """Return the answer to a gang that is put off; None: the time suffices.

        A gang that was asked early is not put off.
        """
        if self.turns.is_early(gang):
            return None
        if self.limits.has_yielded(gang):
            return self.late_gangs.late_again(gang.uid, namespace=gang.namespace)
        return self.late_gangs.late([gang], cost=self._session.pending.cost_of(gang), stage=stage)

    def _late_group(self, group: GangGroup, *, stage: Stage = Stage.ADMIT) -> Rejection | None:
        """Return the answer to a group that is put off; None: the time suffices."""
        return self.late_gangs.late(group.members, cost=group.units * group.tries, stage=stage)

    def _late_behind(self, gangs: Sequence[Gang]) -> Rejection | None:
        """Return the answer to gangs behind others that this cycle does not explain."""
        return self.explanations.late(gangs) if self._is_strictly_behind(gangs[0]) else None

    def _is_strictly_behind(self, gang: Gang) -> bool:
        """Return whether a gang is behind a blocking one, in a cycle in which no gang is passed."""
        return self._session.policy.waiting is WaitingRule.STRICT and self._is_behind(gang)

    def _is_behind(self, gang: Gang) -> bool:
        """Return whether a gang is behind a blocking one in each pool that it may use."""
        demand, pools = self._session.unmet_demand, self._session.projection.current.pools
        if not demand.holds_any:
            return False
        if demand.holds(pools):
            return True
        names = self._pools_of(gang)
        return bool(names) and all(demand.is_behind(gang=gang, pool=name) for name in names)

    def _without_pools(self, gangs: Sequence[Gang]) -> dict[int, Rejection] | None:
        """Return the first rejections without a search, by position; None if there are none.

        One is enough for the group to wait. Its other gangs then want nothing either.
        """
        rejected: dict[int, Rejection] = {}
        for i, gang in enumerate(gangs):
            pools = self._not_admitted(gang) or self._usable_pools(gang)
            if isinstance(pools, Rejection):
                rejected[i] = pools
                if len(rejected) >= MOST_REJECTED_KINDS:
                    break
        return rejected or None

    def _usable_pools(self, gang: Gang) -> Sequence[str] | Rejection:
        """Return the pools to try, or the rejection with its remedy if there are none."""
        session = self._session
        pools = session.pools.select(gang=gang, queue=session.queues[gang.queue])
        if not isinstance(pools, Rejection) or not pools.remedy or not pools.remedy.pool:
            return pools
        return self._remedies.complete(
            pools, gang=gang, pool=pools.remedy.pool, pods=gang.legal_sizes[0]
        )

    def _is_known(self, gang: Gang) -> bool:
        """Return whether the rejection of an equivalent gang is also this gang's answer."""
        if is_individual(gang):
            return False
        rejection = self._rejections.rejection(gang)
        return rejection is not None and not self._reservations.wants(rejection.reason)

    def _is_class_known(self, gang: Gang) -> bool:
        """Return whether one rejection answers the gang's whole class, for all maximum runtimes."""
        if is_individual(gang):
            return False
        rejection = self._rejections.for_class(gang)
        return rejection is not None and not self._reservations.wants(rejection.reason)

    def _merged(self, *, gang: Gang, outcome: Rejection | RejectedByPools) -> Rejection:
        """Return the answer to the gang, and record the demand that its pools could not meet."""
        if isinstance(outcome, Rejection):
            return outcome
        return self._session.unmet_demand.reject(gang=gang, rejections=outcome.rejections)

    def _try(
        self, gang: Gang, *, explains: bool = True
    ) -> GangPlacement | Yields | Rejection | RejectedByPools:
        """Run steps 1 to 3: find the slots in which a gang can start now. Nothing is taken.

        Args:
            gang: the gang.
            explains: False if only the fact that it is rejected counts, which is cheaper.
        """
        session = self._session
        # Step 1.
        rejection = self._not_admitted(gang)
        if rejection:
            return rejection
        queue = session.queues[gang.queue]
        pools = self._usable_pools(gang)
        if isinstance(pools, Rejection):
            return pools
        if gang.retry_at > session.now:
            return session.unmet_demand.back_off(gang=gang, pools=pools)
        # Step 2. Larger sizes never borrow what other gangs are entitled to.
        smallest, *larger = gang.legal_sizes
        room = self._room_anywhere(gang=gang, queue=queue, sizes=larger, entitled=self.turns)
        if room is not None:
            return room
        # Step 3. A pool in which the gang would deprive another one is
        # used only if no other pool fits.
        rejections: dict[str, Rejection] = {}
        yields: Yields | None = None
        # The reasons of some pools count only if no pool fits, and cost more than a search.
        for explained in (False, True) if explains and len(pools) > 1 else (explains,):
            for pool in pools:
                if rejections.get(pool, _UNEXPLAINED) is not _UNEXPLAINED:
                    continue
                nodes = self._find(gang=gang, pool=pool, pods=smallest, explains=explained)
                if isinstance(nodes, Rejection):
                    rejections[pool] = nodes
                    continue
                room = GangPlacement(gang=gang, pool=pool, nodes=tuple(nodes))
                deprived = self.turns.first_deprived_by(gang, pool=pool, size=smallest)
                if deprived is None:
                    return room
                self._reservations.take_back(gang.uid)
                rooms = (*yields.rooms, room) if yields else (room,)
                yields = Yields(to=yields.to if yields else deprived, rooms=rooms)
            if yields is not None:
                return yields
        return RejectedByPools(rejections=rejections)

    def _room_of(self, yields: Yields) -> GangPlacement:
        """Return the slots of a gang that starts although it could yield."""
        self._reservations.replan()  # the plan does not count on the start
        return yields.rooms[0]

    @property
    def _state(self) -> Hashable:
        """A value that changes with what a search may find."""
        projection = self._session.projection
        return (
            projection.current.quota.version,
            projection.projected.quota.version,
            self._reservations.version,
        )

    def _yields_again(self, gang: Gang) -> GangPlacement | Yields | None:
        """Return what a search for a gang that has yielded would find, if it is known.

        None: something has changed since, so a search decides.
        """
        state, before = self._yielding.get(gang.uid, (None, None))
        if before is None or state != self._state or len(gang.legal_sizes) > 1:
            return None
        first: Gang | None = None
        for room in before.rooms:
            deprived = self.turns.first_deprived_by(gang, pool=room.pool, size=room.size)
            if deprived is None:
                spare = self._reservations.spare(gang=gang, pool=room.pool, nodes=room.nodes)
                return None if isinstance(spare, Rejection) else replace(room, nodes=tuple(spare))
            first = first or deprived
        return None if first is None else Yields(to=first, rooms=before.rooms)

    def _not_admitted(self, gang: Gang) -> Rejection | None:
        """Return a rejection of step 1 that no eviction can change; None if there is none."""
        with deciding(gang, Stage.ADMIT):  # also asked about gangs that another one would deprive
            return (
                self._access.rejection(gang)
                or self._session.budgets.rejection(gang)
                or self._session.sweeps.rejection(gang)
            )

    def _entitlements(self) -> Entitlements:
        """Return the entitlements of gangs that wait, or will wait once they have been evicted."""
        session, projected = self._session, self._session.projection.projected
        heads, waiting = (chain[0] for chain in session.pending.chains), list[Gang]()
        for gang in (*heads, *session.evicted):
            with deciding(gang, Stage.ADMIT):
                if not projected.has_places(gang) and self._not_admitted(gang) is None:
                    waiting.append(gang)
        return Entitlements(
            waiting=waiting,
            quota=projected.quota,
            pools=session.pools,
            queues=session.queues,
        )

    def _try_together(
        self, group: GangGroup
    ) -> list[Placed] | Mapping[int, Rejection | RejectedByPools]:
        """Start all gangs of a group, or return why some cannot start, by position in the group.

        The gangs are tried in several orders. The rejections are those of the first order. A gang
        that does not fit without the others fits in no order.
        """
        is_late = lateness(self._session.try_budget)
        first: dict[int, Rejection | RejectedByPools] = {}
        position = {gang.uid: i for i, gang in enumerate(group.members)}
        kinds: set[int] = set()
        for order in group.orders():
            # Every start changes the views, so a failed order is undone
            # before the next one is tried.
            mark = self._session.placer.mark()
            starts: list[Placed] = []
            rejected: dict[int, Rejection | RejectedByPools] = {}
            for gang in order:
                with deciding(gang, Stage.ADMIT):
                    outcome = self._try(gang, explains=not first)
                if isinstance(outcome, Yields):
                    outcome = self._room_of(outcome)  # a group has a turn of its own
                if isinstance(outcome, GangPlacement):
                    starts.append(self._start(outcome))
                    continue
                rejected[position[gang.uid]] = outcome
                kinds.add(self._session.pending.class_of(gang))
                # Only the rejections of the first order are answers. One is enough for the other
                # gangs to wait.
                if first or len(kinds) >= MOST_REJECTED_KINDS or is_late(f"rejected {gang.uid}"):
                    break
            if not rejected:
                return starts
            self._withdraw(starts, gangs=order, mark=mark)
            if not first and not all(self._fits_alone(group.members[i]) for i in rejected):
                return rejected
            first = first or rejected
        return first

    def _preempt_together(
        self, group: GangGroup, *, rejected: Mapping[int, Rejection | RejectedByPools]
    ) -> Sequence[Preemption]:
        """Run step 4 for a group: find victims for all its gangs, or for none.

        Gangs that fit are nominated, too, so all places are kept until the group can start. Of
        several orders, the one whose victims lose least is used.
        """
        session, members = self._session, group.members
        if len(members) > MOST_PREEMPTING or any(
            gang.is_foreign or gang.no_eviction_reason or self._is_too_new(gang) for gang in members
        ):
            return ()
        asking = [members[i] for i, why in rejected.items() if isinstance(why, RejectedByPools)]
        if len(asking) < len(rejected) or not any(
            rules_of(gang=gang, queue=session.queues[gang.queue]) for gang in asking
        ):
            return ()
        orders = list(islice(group.orders(), MOST_PREEMPTING_ORDERS))
        tried: list[GroupVictims] = []
        for number, order in enumerate(orders):
            # One order suffices when the time is over, but no victim is spared less.
            if tried and session.is_late(f"{Stage.PREEMPT} {members[0].uid} {number}"):
                break
            if choice := self._victims_in(order):
                tried.append(choice)
        if not tried:
            return ()
        best = min(tried, key=lambda choice: choice.cost)
        # Each victim that is not necessary beside the others stays, the most expensive first.
        for uid in sorted(best.victims, key=lambda uid: (-best.victims[uid], uid))[:MOST_SPARED]:
            session.preemptor.restrict(frozenset(best.victims.keys() - {uid}))
            fewer = (choice for order in orders[:2] if (choice := self._victims_in(order)))
            best = next(fewer, best)
        session.preemptor.restrict(frozenset(best.victims))
        preemptions = self._evict_in_order(best.order)
        session.preemptor.restrict(None)
        self._rejections.clear()
        self._reservations.replan()
        return preemptions or ()

    def _victims_in(self, order: Sequence[Gang]) -> GroupVictims | None:
        """Return the victims with which gangs can be nominated one after the other.

        None: there are none, or none is necessary. Nothing is changed.
        """
        mark, seconds = self._session.placer.mark(), self._session.policy.restart_seconds
        preemptions = self._evict_in_order(order)
        if preemptions is None:
            return None
        self._take_back(order, mark=mark)
        victims = {
            victim.uid: victim.gpu_seconds_lost + victim.gpus * seconds
            for each in preemptions
            for victim in each.victims
        }
        # Without victims, the group waits for gangs that leave anyway.
        return GroupVictims(order=order, victims=victims) if victims else None

    def _evict_in_order(self, order: Sequence[Gang]) -> list[Preemption] | None:
        """Nominate gangs one after the other, with victims where needed; None: not all can be.

        Then nothing is changed.
        """
        session, done = self._session, list[Preemption]()
        mark = session.placer.mark()
        for number, gang in enumerate(order):
            with deciding(gang, Stage.PREEMPT):
                outcome = self._try(gang)
                if isinstance(outcome, Yields):
                    outcome = self._room_of(outcome)
                preemption = self._evict_for(gang, outcome=outcome)
            if preemption is None:
                self._take_back(order[:number], mark=mark)
                return None
            session.sweeps.start(gang)
            done.append(preemption)
        return done

    def _evict_for(
        self, gang: Gang, *, outcome: GangPlacement | Rejection | RejectedByPools
    ) -> Preemption | None:
        """Nominate a gang of a group for free slots, for slots that become free, or with victims.

        Args:
            gang: the gang.
            outcome: why it cannot start now, or where it could.
        """
        session = self._session
        if isinstance(outcome, Rejection):
            return None
        if isinstance(outcome, GangPlacement):
            kept = Nomination(gang=gang, pool=outcome.pool, nodes=outcome.nodes)
            session.projection.nominate(kept)
        else:
            kept = session.preemptor.keep(gang=gang, rejections=outcome.rejections)
        if kept is None and isinstance(outcome, RejectedByPools):
            return session.preemptor.preempt(
                gang=gang,
                queue=session.queues[gang.queue],
                rejections=outcome.rejections,
                may_move=False,
            )
        return None if kept is None else self._without_victims(kept)

    def _without_victims(self, kept: Nomination) -> Preemption:
        gang, view = kept.gang, self._session.projection.current.pools[kept.pool]
        start = placed(gang=gang, view=view, assignment=kept.nodes)
        return Preemption(
            key=gang.key,
            uid=gang.uid,
            pool=kept.pool,
            assignment=kept.nodes,
            victims=(),
            level=start.level,
            domain=start.domain,
            message=f"{gang.key} waits with its group {gang.group}",
        )

    def _take_back(self, gangs: Sequence[Gang], *, mark: Mapping[Hashable, Rejection]) -> None:
        """Undo the nominations of gangs, in the order in which they were made."""
        for gang in reversed(gangs):
            self._session.preemptor.withdraw(gang)
            self._session.sweeps.withdraw(gang)
        self._session.placer.reset(mark)
        self._reservations.replan()

    def start_group(self, gangs: Sequence[Gang]) -> dict[str, Placed | Blocked]:
        """Start the nominated gangs of a group in their places, or none of them while one waits.

        Args:
            gangs: all gangs of the group.
        """
        session, projection = self._session, self._session.projection
        late = [gang for gang in gangs if gang.retry_at > session.now]
        if late:
            back_off = session.unmet_demand.back_off
            return {
                gang.uid: back_off(gang=gang, pools=()).of(gang)
                if gang in late
                else self.waiting(gang)
                for gang in gangs
            }
        mark, starts, kept = session.placer.mark(), list[Placed](), list[Nomination]()
        for gang in gangs:
            nomination = projection.nomination(gang)
            if nomination is None:
                break
            # Release first: the gang's own nomination must not count against it.
            projection.release(nomination)
            kept.append(nomination)
            pool, nodes = nomination.pool, nomination.nodes
            has_quota = projection.has_quota(gang=gang, pool=pool, size=nomination.size)
            if not has_quota or not projection.current.fits(gang=gang, pool=pool, nodes=nodes):
                break
            starts.append(self._start(GangPlacement(gang=gang, pool=pool, nodes=tuple(nodes))))
        if len(starts) == len(gangs):
            return {start.uid: start for start in starts}
        self._withdraw(starts, gangs=gangs, mark=mark)
        for nomination in kept:
            projection.nominate(nomination)
            session.sweeps.start(nomination.gang)  # `_withdraw` forgot those that had started
        return {gang.uid: self.waiting(gang) for gang in gangs}

    def _fits_alone(self, gang: Gang) -> bool:
        with deciding(gang, Stage.ADMIT):
            outcome = self._try(gang, explains=False)
            self._reservations.take_back(gang.uid)
            return isinstance(outcome, GangPlacement | Yields)

    def _withdraw(
        self,
        starts: Iterable[Placed],
        *,
        gangs: Iterable[Gang],
        mark: Mapping[Hashable, Rejection],
    ) -> None:
        """Undo starts. `mark` has the placer's rejections before them."""
        session = self._session
        by_uid = {gang.uid: gang for gang in gangs}
        for start in starts:
            session.projection.withdraw(gang=by_uid[start.uid], pool=start.pool)
            session.sweeps.withdraw(by_uid[start.uid])
            self._reservations.replan()
        session.placer.reset(mark)

    def _preempt(self, *, gang: Gang, rejected: RejectedByPools) -> Preemption | None:
        """Run step 4: find victims for the gang."""
        session = self._session
        if gang.is_foreign or self._is_too_new(gang):
            return None
        preemption = session.preemptor.preempt(
            gang=gang, queue=session.queues[gang.queue], rejections=rejected.rejections
        )
        if preemption is not None:
            session.sweeps.start(gang)
            self._rejections.clear()
            self._reservations.replan()
        return preemption

    def _is_too_new(self, gang: Gang) -> bool:
        """Return whether the preemption delay of a gang has not passed. It is tried again then.

        Among equivalent gangs, the one that waits longest is tried first.
        """
        session, seconds = self._session, self._session.policy.preemption_delay_seconds
        until = gang.queued_at + seconds
        if not seconds or until <= session.now:
            return False
        session.candidates.retry_at.append(until)
        return True

    def _no_eviction_reason(self, gang: Gang) -> str:
        """Return why no gang is evicted for a gang now, or '' if its queue's policy decides."""
        seconds = self._session.policy.preemption_delay_seconds
        if gang.no_eviction_reason or not seconds or gang.queued_at + seconds <= self._session.now:
            return gang.no_eviction_reason
        return f"it has not waited {seconds:g} s (preemptionDelaySeconds)"

    def _reserve(self, gangs: Sequence[Gang], *, reason: BlockReason) -> None:
        """Run step 5: make a reservation for gangs that start together.

        An overdue cycle makes it only if none of the pools has one.
        """
        session = self._session
        if not self._reservations.wants(reason):
            return
        requests: list[ReservationRequest] = []
        for gang in gangs:
            usable = session.pools.select(gang=gang, queue=session.queues[gang.queue])
            if not isinstance(usable, Rejection):
                requests.append(ReservationRequest(gang=gang, pools=usable))
        pools = {pool for request in requests for pool in request.pools}
        if self._reservations.has_any(pools) and session.is_overdue(f"reserve {gangs[0].uid}"):
            return
        self._reservations.reserve(requests=requests, question=self._rejections.key(gangs))

    def _room_anywhere(
        self,
        *,
        gang: Gang,
        queue: Queue,
        sizes: Sequence[int],
        entitled: Entitlements | Turns | None = None,
    ) -> GangPlacement | None:
        """Run step 2: find slots for the largest of some sizes, in the first pool that has them.

        Args:
            gang: the gang.
            queue: its queue.
            sizes: the sizes to try, ascending.
            entitled: the gang borrows nothing that these gangs are entitled to.
        """
        if not sizes:
            return None
        session = self._session
        pools = session.pools.select(gang=gang, queue=queue)
        if isinstance(pools, Rejection):
            return None

        def fits(size: int, *, pool: str) -> bool:
            return (
                session.projection.has_quota(gang=gang, pool=pool, size=size)
                and not (entitled and entitled.first_deprived_by(gang, pool=pool, size=size))
                and session.placer.try_find(gang=gang, pool=pool, pods=size) is not None
            )

        # A smaller size fits wherever a larger one does, so the sizes that fit are found by
        # bisection. The largest size over all pools wins, and among equal sizes the preferred pool.
        open_pools = [p for p in pools if not session.unmet_demand.is_behind(gang=gang, pool=p)]
        sizes_in = {p: sampled(fitting(sizes, fits=partial(fits, pool=p))) for p in open_pools}
        for size in sorted({*chain.from_iterable(sizes_in.values())}, reverse=True):
            for pool in open_pools:
                if size not in sizes_in[pool]:
                    continue
                nodes = session.placer.try_find(gang=gang, pool=pool, pods=size)
                spare = nodes and self._reservations.spare(gang=gang, pool=pool, nodes=nodes)
                if spare and not isinstance(spare, Rejection):
                    return GangPlacement(gang=gang, pool=pool, nodes=tuple(spare))
        return None

    def _find(
        self, *, gang: Gang, pool: str, pods: int, explains: bool = True
    ) -> list[str] | Rejection:
        """Run step 3: find slots in a pool, or return why there are none. Nothing is changed.

        Args:
            gang: the gang.
            pool: the name of the pool.
            pods: number of main pods.
            explains: False if the rejection is not shown to anybody.
        """
        session = self._session
        if not explains:
            slots = self._try_find(gang=gang, pool=pool, pods=pods)
            if slots is None:
                return _UNEXPLAINED
            return self._reservations.spare(gang=gang, pool=pool, nodes=slots)
        rejection = session.projection.current.quota.infeasible(gang=gang, pool=pool, size=pods)
        if rejection and self.limits.saves_remedy(gang, pool=pool):
            return rejection
        if rejection:
            return self._remedies.complete(rejection, gang=gang, pool=pool, pods=pods)
        rejection = session.unmet_demand.behind(gang=gang, pool=pool)
        if rejection:
            return rejection
        rejection = session.projection.exhausted(gang=gang, pool=pool, size=pods)
        if rejection:
            # A gang that can never fit must not wait for quota, nor hold its queue back.
            infeasible = session.placer.infeasible(gang=gang, pool=pool, pods=pods)
            return infeasible or self._remedies.complete(rejection, gang=gang, pool=pool, pods=pods)
        nodes = session.placer.find(gang=gang, pool=pool, pods=pods)
        if isinstance(nodes, Rejection):
            return nodes
        return self._reservations.spare(gang=gang, pool=pool, nodes=nodes)

    def _try_find(self, *, gang: Gang, pool: str, pods: int) -> list[str] | None:
        """Return slots in a pool, or None without a reason."""
        session = self._session
        if session.unmet_demand.is_behind(gang=gang, pool=pool) or not session.projection.has_quota(
            gang=gang, pool=pool, size=pods
        ):
            return None
        return session.placer.try_find(gang=gang, pool=pool, pods=pods)

    def _start(self, room: GangPlacement) -> Placed:
        session, gang, pool, nodes = self._session, room.gang, room.pool, room.nodes
        # Slots and quota are taken before the next gang is tried, so two gangs never share them.
        session.projection.take(gang=gang, pool=pool, nodes=nodes)
        session.projection.hold(gang=gang, pool=pool, size=room.size)
        self._reservations.start(gang=gang, pool=pool, nodes=nodes)
        session.sweeps.start(gang)
        view = session.projection.current.pools[pool]
        return placed(gang=gang, view=view, assignment=nodes)
