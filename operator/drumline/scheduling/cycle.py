"""One scheduling cycle: a snapshot and the waiting gangs in, decisions out.

Broken gangs are repaired first: they hold capacity that does nothing until they are whole. Then
waiting gangs are looked at once each, by priority, age and uid. A gang gets all its places or
none, and what it gets is taken from the view before the next one is looked at; so two gangs can
never hold parts of what one of them needs (I4), and whatever fits starts in this cycle (I8).

Cost: O(nodes x levels) to build the view, O(nodes) once per shape of pods, and per gang
O(domains of the levels searched + its places); equal gangs that do not fit cost one explanation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from drumline.scheduling.decisions import Blocked, BlockReason, Decisions, Placed
from drumline.scheduling.desk import Desk
from drumline.scheduling.model import Admitted, Gang, Policy, Snapshot


def decide(
    *,
    snapshot: Snapshot,
    pending: Iterable[Gang],
    policy: Policy,
    now: float,
) -> Decisions:
    """Decide which waiting gangs start now, and where, and repair the admitted ones.

    The result does not depend on the order of anything in the arguments.

    Args:
        snapshot: the cluster and what is admitted; `Admitted.lost` asks for replacements.
        pending: gangs that wait, none of them admitted already.
        policy: the rule for those behind a gang that cannot start.
        now: seconds on the clock of `Gang.retry_at`; only backing off depends on it.

    Raises:
        ValueError: where one uid stands for two gangs.
    """
    waiting = sorted(pending, key=_turn)
    _refuse_twins(waiting=waiting, admitted=snapshot.admitted)
    broken = sorted((held for held in snapshot.admitted if held.lost), key=lambda h: _turn(h.gang))
    desk = Desk(snapshot=snapshot, pending=waiting, policy=policy, now=now)
    repairs = [desk.repair(held) for held in broken]
    starts = [desk.admit(gang) for gang in waiting]
    return _decisions(outcomes=[*repairs, *starts], looked_at=[*(h.gang for h in broken), *waiting])


def _turn(gang: Gang) -> tuple[int, float, str]:
    """The order of looking: higher priority, then longer waiting, then uid."""
    return (-gang.priority, gang.queued_at, gang.uid)


def _refuse_twins(*, waiting: Sequence[Gang], admitted: Sequence[Admitted]) -> None:
    seen = {held.gang.uid for held in admitted}
    for gang in waiting:
        if gang.uid in seen:
            raise ValueError(f"{gang.key} ({gang.uid}) waits twice or is admitted already")
        seen.add(gang.uid)


def _decisions(*, outcomes: Sequence[Placed | Blocked], looked_at: Sequence[Gang]) -> Decisions:
    retries = [
        gang.retry_at
        for outcome, gang in zip(outcomes, looked_at, strict=True)
        if isinstance(outcome, Blocked) and outcome.reason is BlockReason.BACKING_OFF
    ]
    return Decisions(
        placed=tuple(outcome for outcome in outcomes if isinstance(outcome, Placed)),
        blocked=tuple(outcome for outcome in outcomes if isinstance(outcome, Blocked)),
        retry_at=min(retries, default=None),
    )
