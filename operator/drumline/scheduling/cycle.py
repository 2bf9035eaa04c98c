"""One scheduling cycle: a snapshot and the waiting gangs in, decisions out.

Broken gangs are repaired first: they hold capacity that does nothing until they are whole. Then
come gangs whose victims have left, then the other waiting ones, once each, in the order of
`ordering`. A gang gets all its places or none, and what it gets is taken from the view before the
next one is looked at; so two gangs can never hold parts of what one of them needs (I4), and
whatever fits starts in this cycle (I8). A gang for which nothing is free may send others away; the
places it will have are kept from that moment on (I6). Last, elastic gangs grow into what nobody
wants.

Cost: O(nodes x levels) to build the view, O(nodes) once per shape of pods, and per gang
O(domains of the levels searched + its places); equal gangs that do not fit cost one explanation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from drumline.scheduling.decisions import (
    Blocked,
    BlockReason,
    Decisions,
    Placed,
    Preemption,
    Resized,
)
from drumline.scheduling.desk import Desk
from drumline.scheduling.groups import Groups
from drumline.scheduling.model import Admitted, Gang, Policy, Snapshot
from drumline.scheduling.ordering import turn

Answer = Placed | Resized | Preemption | Blocked


def decide(
    *,
    snapshot: Snapshot,
    pending: Iterable[Gang],
    policy: Policy,
    now: float,
) -> Decisions:
    """Decide which waiting gangs start now, and where, who has to leave, and repair the rest.

    The result does not depend on the order of anything in the arguments.

    Args:
        snapshot: the cluster and what is admitted; `Admitted.lost` asks for replacements.
        pending: gangs that wait, none of them admitted already.
        policy: the rule for those behind a gang that cannot start, and what preemption costs.
        now: seconds on the clock of `Gang.retry_at` and `Admitted.admitted_at`.

    Raises:
        ValueError: where one uid stands for two gangs.
    """
    waiting = sorted(pending, key=turn)
    _refuse_twins(waiting=waiting, admitted=snapshot.admitted)
    running = sorted(snapshot.admitted, key=lambda held: turn(held.gang))
    desk = Desk(snapshot=snapshot, pending=waiting, policy=policy, now=now)
    answers = _settle(
        desk=desk,
        broken=[held for held in running if held.lost and not held.leaving],
        nominated=[gang for gang in waiting if desk.is_nominated(gang)],
    )
    fresh = [gang for gang in waiting if gang.uid not in answers]
    groups = Groups(waiting=fresh, admitted=running)
    for gang in desk.line(fresh):
        group = groups.of(gang)
        if group is None:
            answers[gang.uid] = desk.admit(gang)
        elif gang.uid not in answers:
            answers.update(desk.admit_together(group))
    for held in running:
        if held.gang.sizes and not (held.lost or held.leaving or held.giving_up):
            resized = desk.grow(held)
            if resized is not None:
                answers[held.gang.uid] = resized
    return _decisions(desk=desk, answers=answers, waiting=waiting, running=running)


def _settle(
    *, desk: Desk, broken: Sequence[Admitted], nominated: Sequence[Gang]
) -> dict[str, Answer]:
    """Answer those to whom places are due: repairs, then gangs whose victims have left.

    Where one of the latter found places elsewhere, the kept ones are free for all others again.
    """
    answers: dict[str, Answer] = {}
    while True:
        for held in broken:
            if not isinstance(answers.get(held.gang.uid), Placed | Resized | Preemption):
                answers[held.gang.uid] = desk.repair(held)
        for gang in nominated:
            if not isinstance(answers.get(gang.uid), Placed):
                answers[gang.uid] = desk.claim(gang)
        if not desk.gave_back():
            return answers


def _refuse_twins(*, waiting: Sequence[Gang], admitted: Sequence[Admitted]) -> None:
    seen = {held.gang.uid for held in admitted}
    for gang in waiting:
        if gang.uid in seen:
            raise ValueError(f"{gang.key} ({gang.uid}) waits twice or is admitted already")
        seen.add(gang.uid)


def _decisions(
    *,
    desk: Desk,
    answers: Mapping[str, Answer],
    waiting: Sequence[Gang],
    running: Sequence[Admitted],
) -> Decisions:
    retries = list(desk.retries)
    blocked: list[Blocked] = []
    for gang in (*(held.gang for held in running), *waiting):
        answer = answers.get(gang.uid)
        if isinstance(answer, Preemption):
            answer = desk.waiting(gang)
        if isinstance(answer, Blocked):
            blocked.append(answer)
            if answer.reason is BlockReason.BACKING_OFF:
                retries.append(gang.retry_at)
    given, asked = answers.values(), {gang.uid for gang in waiting}
    return Decisions(
        placed=tuple(one for one in given if isinstance(one, Placed)),
        blocked=tuple(blocked),
        preemptions=tuple(one for one in given if isinstance(one, Preemption)),
        resized=tuple(one for one in given if isinstance(one, Resized)),
        moves=desk.moves(),
        reservations=desk.reservations,
        order=tuple(uid for uid in answers if uid in asked),
        retry_at=min(retries, default=None),
    )
