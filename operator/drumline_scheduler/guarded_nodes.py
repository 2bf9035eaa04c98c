"""Close nodes to kube-scheduler, so that a gang gets the slots that it was promised there.

A node is *guarded* while it has the taint `api.base.TAINT_PROMISED`, which foreign pods do not
tolerate. The owner of a pool turns this on. In other pools, the first pod to be bound gets the
slot. The operator binds its own pods past taints. So a slot passes from promise to pod without a
moment in which it is free for others. The taint is set before the victims leave, and removed once
the operator has seen the pods.

kube-scheduler learns of nodes and of pods from two informers, in no fixed order. So no decision
relies on a taint, or on its end, before `SETTLE_SECONDS` have passed. By then kube-scheduler has
seen the taint and bound the pods that it was about to bind, and the operator has seen these.

    decided: G on n1     n1 tainted    + SETTLE: decided again     G's pods seen    + SETTLE: lifted
    |--- kube-scheduler may still bind ---|------- n1 is G's, or it was not free -------|
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from drumline_scheduler.decisions import Decisions, Placed, Preemption, Resized

SETTLE_SECONDS: Final = 1.0
"""Time within which kube-scheduler sees a taint and completes the binding in progress. A pod whose
volumes it still provisions takes longer. The node's kubelet then rejects it, or a pod of the gang.
"""
GIVE_UP_SECONDS: Final = 10.0
"""A node that could not be tainted for this time is used like a node of an unguarded pool."""
FIRST_PAUSE_SECONDS: Final = 60.0
LONGEST_PAUSE_SECONDS: Final = 3600.0
_DOUBLINGS: Final = 6
"""Enough doublings to reach the longest pause."""
FORGET_SECONDS: Final = 3.0
"""A node without a promise is dropped if no decision has named it for this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """The decisions that may be carried out, and the nodes that the other decisions wait for.

    Attributes:
        decisions: decisions about guarded nodes and about unguarded pools.
        nodes: nodes of guarded pools that any decision counts on.
    """

    decisions: Decisions
    nodes: frozenset[str]


def hold_back(
    decisions: Decisions,
    *,
    pools: Collection[str],
    secured: Collection[str],
    groups: Mapping[str, str],
) -> Guarded:
    """Leave out decisions that count on nodes that are not guarded yet.

    Nothing is nominated and no victim leaves before. The next cycle decides on the capacity that is
    free then.

    Args:
        decisions: decisions of a cycle.
        pools: the guarded pools.
        secured: nodes that are guarded by now.
        groups: group with which a waiting gang starts, by uid; '' for none.
    """
    wanted = frozenset(
        node
        for each in (*decisions.placed, *decisions.resized, *decisions.preemptions)
        if each.pool in pools
        for node in new_nodes(each)
    )
    unready = wanted.difference(secured)
    if not unready:
        return Guarded(decisions=decisions, nodes=wanted)

    def may_go(each: Placed | Resized | Preemption) -> bool:
        return each.pool not in pools or unready.isdisjoint(new_nodes(each))

    # A group starts together, so one gang that must wait holds its group back.
    held = {groups.get(each.uid, "") for each in decisions.placed if not may_go(each)} - {""}
    allowed = replace(
        decisions,
        placed=tuple(
            each
            for each in decisions.placed
            if may_go(each) and groups.get(each.uid, "") not in held
        ),
        resized=tuple(filter(may_go, decisions.resized)),
        preemptions=tuple(filter(may_go, decisions.preemptions)),
    )
    return Guarded(decisions=allowed, nodes=wanted)


def new_nodes(decision: Placed | Resized | Preemption) -> Iterable[str]:
    """Return the nodes that a gang does not have yet. A place that it keeps needs no promise."""
    if isinstance(decision, Resized):
        return decision.added
    if decision.replaced:
        return (decision.assignment[position] for position in decision.replaced)
    return decision.assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class TaintChanges:
    """Taints to add and to lift, by node."""

    add: frozenset[str] = frozenset()
    lift: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """A node that could not be tainted. It is used at once, and the taint is tried again later."""

    tries: int
    again_at: float


@dataclass(slots=True)
class NodeGuard:
    """Times since which nodes are guarded, wanted or not needed. Monotonic seconds.

    A node that was refused long enough is given up and stays given up, so that no gang waits for it
    again. A write is tried again after a minute, two, up to an hour. A successful write ends that.

    The state does not outlive the process. A new leader finds the taints on the nodes and the
    promises in the jobs' statuses. It lifts taints that match no promise.
    """

    _wanted: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """Times at which a decision first and last named a node."""
    _seen: dict[str, float] = field(default_factory=dict[str, float])
    """Times since which nodes have the taint."""
    _unneeded: dict[str, float] = field(default_factory=dict[str, float])
    """Times since which tainted nodes have no promise."""
    _refused: dict[str, _Refusal] = field(default_factory=dict[str, _Refusal])

    def want(self, nodes: Iterable[str], *, now: float) -> None:
        """Record that decisions count on these nodes."""
        for node in nodes:
            first, _ = self._wanted.get(node, (now, now))
            self._wanted[node] = (first, now)
            self._unneeded.pop(node, None)

    def secured(self, *, now: float) -> frozenset[str]:
        """Return the nodes to which kube-scheduler binds nothing, or that cannot be guarded."""
        guarded = {node for node, since in self._seen.items() if now - since >= SETTLE_SECONDS}
        return frozenset(guarded.union(self.not_guardable(now=now)))

    def not_guardable(self, *, now: float) -> frozenset[str]:
        """Return the nodes that could not be tainted in time."""
        return frozenset(
            node
            for node, (first, _) in self._wanted.items()
            if node not in self._seen and (node in self._refused or now - first >= GIVE_UP_SECONDS)
        )

    def refuse(self, nodes: Iterable[str], *, now: float) -> None:
        """Record that the API server refused to taint nodes. They are given up once that lasts.

        A write without an answer is not a refusal, because the next one may succeed.
        """
        given_up = self.not_guardable(now=now)
        for node in given_up.intersection(nodes):
            before = self._refused.get(node)
            tries = before.tries + 1 if before is not None else 1
            pause = FIRST_PAUSE_SECONDS * 2.0 ** min(tries - 1, _DOUBLINGS)
            again_at = now + min(LONGEST_PAUSE_SECONDS, pause)
            self._refused[node] = _Refusal(tries=tries, again_at=again_at)

    @property
    def is_idle(self) -> bool:
        """True if no node has the taint or is to get it."""
        return not (self._wanted or self._seen)

    def changes(
        self, *, tainted: Collection[str], promised: Collection[str], now: float
    ) -> TaintChanges:
        """Return the taints to write.

        A node whose taint is to be lifted no longer counts as guarded.

        Args:
            tainted: nodes that have the taint.
            promised: nodes that are promised to gangs whose pods are not all there.
            now: monotonic seconds.
        """
        # 1. Forget nodes that no decision has named lately, and refusals that are long past.
        self._wanted = {
            node: times for node, times in self._wanted.items() if now - times[1] < FORGET_SECONDS
        }
        self._seen = {node: self._seen.get(node, now) for node in tainted}
        self._refused = {
            node: refusal
            for node, refusal in self._refused.items()
            if node not in self._seen and now < refusal.again_at + LONGEST_PAUSE_SECONDS
        }
        # 2. Nodes that are wanted or promised keep the taint or get it, unless a write is paused.
        paused = {node for node, refusal in self._refused.items() if now < refusal.again_at}
        needed = self._wanted.keys() | promised
        self._unneeded = {
            node: self._unneeded.get(node, now) for node in tainted if node not in needed
        }
        # 3. The taint stays for `SETTLE_SECONDS` after its last use, until
        # kube-scheduler has seen the pods.
        lift = frozenset(
            node for node, since in self._unneeded.items() if now - since >= SETTLE_SECONDS
        )
        for node in lift:
            del self._seen[node]
        return TaintChanges(add=frozenset(needed.difference(tainted, paused)), lift=lift)
