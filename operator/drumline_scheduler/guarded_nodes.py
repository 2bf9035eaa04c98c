"""Which nodes are closed to kube-scheduler, so that a gang gets what it was promised there.

A node is *guarded* while it has the taint of `api.base.TAINT_PROMISED`, which no pod of others
tolerates. Its pool's owner chose that; elsewhere who binds a pod first has the place. Our own pods
are bound past taints, so a place changes from a promise to a pod without a moment in which it is
free for others: the taint is there before the victims leave, and goes once the pods were seen.

Two informers of kube-scheduler tell it of nodes and of pods, in no order. So nothing is decided on
a taint, or on its end, before it has stood for `SETTLE_SECONDS`: by then kube-scheduler has seen
it, what it was about to bind is bound, and we have seen that in turn.

    decided: G on n1     n1 tainted    + SETTLE: decided again     G's pods seen    + SETTLE: lifted
    |--- kube-scheduler may still bind ---|------- n1 is G's, or it was not free -------|
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from drumline_scheduler.decisions import Decisions, Placed, Preemption, Resized

SETTLE_SECONDS: Final = 1.0
"""kube-scheduler sees a taint, and ends what it is binding, within this time. A pod whose volumes
it still provisions takes longer: its node's kubelet refuses it, or one of the gang's."""
GIVE_UP_SECONDS: Final = 10.0
"""A node that could not be tainted for so long is used as one of a pool that is not guarded."""
FIRST_PAUSE_SECONDS: Final = 60.0
LONGEST_PAUSE_SECONDS: Final = 3600.0
_DOUBLINGS: Final = 6
"""More than enough for the longest."""
FORGET_SECONDS: Final = 3.0
"""A node that no decision has named for so long, and that is promised to nobody, is not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """The decisions that may be carried out, and what the others wait for.

    Attributes:
        decisions: those about guarded nodes, and about other pools.
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
    """Leave out what counts on nodes of guarded pools that are not guarded yet.

    Nothing is nominated and no victim leaves before; the next cycle decides on what is free then.

    Args:
        decisions: of a cycle.
        pools: whose nodes are guarded.
        secured: the nodes that are guarded by now.
        groups: by uid of a waiting gang, the group with which it starts; '' for none.
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
    """The nodes that a gang does not have yet; a place that it keeps needs no promise."""
    if isinstance(decision, Resized):
        return decision.added
    if decision.replaced:
        return (decision.assignment[position] for position in decision.replaced)
    return decision.assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class TaintChanges:
    """What is to be written."""

    add: frozenset[str] = frozenset()
    lift: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """A node that could not be tainted: it is used at once, and tried again at times."""

    tries: int
    again_at: float


@dataclass(slots=True)
class NodeGuard:
    """Since when nodes are guarded, wanted, or needed no more. Times are monotonic seconds.

    A node that was refused for so long that it was given up stays given up, so that no gang waits
    for it again; a write is tried again after a minute, two, up to an hour, and one that succeeds
    ends that.

    Nothing of it outlives the process: a new leader finds the taints, and what is promised in the
    jobs' statuses; what fits to no promise it lifts.
    """

    _wanted: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """When a decision first and last named a node."""
    _seen: dict[str, float] = field(default_factory=dict[str, float])
    """Since when nodes have the taint."""
    _unneeded: dict[str, float] = field(default_factory=dict[str, float])
    """Since when tainted nodes are promised to nobody."""
    _refused: dict[str, _Refusal] = field(default_factory=dict[str, _Refusal])

    def want(self, nodes: Iterable[str], *, now: float) -> None:
        """Decisions count on these nodes."""
        for node in nodes:
            first, _ = self._wanted.get(node, (now, now))
            self._wanted[node] = (first, now)
            self._unneeded.pop(node, None)

    def secured(self, *, now: float) -> frozenset[str]:
        """The nodes on which kube-scheduler binds nothing any more, or that cannot be guarded."""
        guarded = {node for node, since in self._seen.items() if now - since >= SETTLE_SECONDS}
        return frozenset(guarded.union(self.not_guardable(now=now)))

    def not_guardable(self, *, now: float) -> frozenset[str]:
        """The nodes that could not be tainted in time."""
        return frozenset(
            node
            for node, (first, _) in self._wanted.items()
            if node not in self._seen and (node in self._refused or now - first >= GIVE_UP_SECONDS)
        )

    def refuse(self, nodes: Iterable[str], *, now: float) -> None:
        """The API server has refused to taint these; they are given up once that lasts.

        A write that got no answer is no refusal: the next one may succeed.
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
        """Whether no node has the taint or is to get it."""
        return not (self._wanted or self._seen)

    def changes(
        self, *, tainted: Collection[str], promised: Collection[str], now: float
    ) -> TaintChanges:
        """What is to be written; a node whose taint is to be lifted counts as guarded no more.

        Args:
            tainted: the nodes that have the taint.
            promised: the nodes that are promised to gangs whose pods are not all there.
            now: the time.
        """
        self._wanted = {
            node: times for node, times in self._wanted.items() if now - times[1] < FORGET_SECONDS
        }
        self._seen = {node: self._seen.get(node, now) for node in tainted}
        self._refused = {
            node: refusal
            for node, refusal in self._refused.items()
            if node not in self._seen and now < refusal.again_at + LONGEST_PAUSE_SECONDS
        }
        paused = {node for node, refusal in self._refused.items() if now < refusal.again_at}
        needed = self._wanted.keys() | promised
        self._unneeded = {
            node: self._unneeded.get(node, now) for node in tainted if node not in needed
        }
        lift = frozenset(
            node for node, since in self._unneeded.items() if now - since >= SETTLE_SECONDS
        )
        for node in lift:
            del self._seen[node]
        return TaintChanges(add=frozenset(needed.difference(tainted, paused)), lift=lift)
